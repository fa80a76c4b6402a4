//! Access to model-specific registers through the kernel's `msr` driver.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Folder in which the kernel's `msr` driver has a subfolder for each processor.
pub(super) const DRIVER: &str = "/dev/cpu";

/// Error of reading or writing a register.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The kernel's `msr` driver is not loaded, or the processor is not online.
    #[error("there is no {}; as root: modprobe msr (or processor {cpu} is offline)", path.display())]
    NoDriver {
        /// Device file that was opened.
        path: PathBuf,
        /// Number of the processor.
        cpu: u32,
    },
    /// The system denied access to the processor's registers.
    #[error(
        "{} may not be {}: {source}; it takes root with CAP_SYS_RAWIO, a kernel that is not locked down \
         (Secure Boot), and for writing msr.allow_writes",
        path.display(), if *.writing { "written" } else { "read" }
    )]
    NotPermitted {
        /// Device file to which access was denied.
        path: PathBuf,
        /// Whether the access was for writing.
        writing: bool,
        /// Error of the system call.
        source: io::Error,
    },
    /// The processor does not have the register, or does not accept the value that was to be written.
    #[error("processor {cpu} has no register {register:#x}, or does not take that value")]
    NoRegister {
        /// Number of the processor.
        cpu: u32,
        /// Address of the register.
        register: u32,
    },
    /// Access to a register failed for a reason that no other variant names.
    #[error("register {register:#x} of processor {cpu}: {source}")]
    System {
        /// Number of the processor.
        cpu: u32,
        /// Address of the register.
        register: u32,
        /// Error of the system call.
        source: io::Error,
    },
}

/// Open handle to one processor's model-specific registers.
#[derive(Debug)]
pub struct Msr {
    cpu: u32,
    path: PathBuf,
    file: File,
    writable: bool,
}

impl Msr {
    /// Opens the registers of a processor for reading, and also for writing where `writable` is set.
    ///
    /// # Errors
    /// [`RegisterError::NoDriver`], [`RegisterError::NotPermitted`].
    pub fn of_cpu(cpu: u32, writable: bool) -> Result<Self, RegisterError> {
        Self::of_driver(DRIVER.as_ref(), cpu, writable)
    }

    /// Opens registers like [`Self::of_cpu`], in a folder that is laid out like that of the `msr` driver.
    pub(super) fn of_driver(driver: &Path, cpu: u32, writable: bool) -> Result<Self, RegisterError> {
        let path = driver.join(format!("{cpu}/msr"));
        match OpenOptions::new().read(true).write(writable).open(&path) {
            Ok(file) => Ok(Self { cpu, path, file, writable }),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENXIO | libc::ENODEV)) => {
                Err(RegisterError::NoDriver { path, cpu })
            }
            Err(source) => Err(RegisterError::NotPermitted { path, writing: writable, source }),
        }
    }

    fn failed(&self, register: u32, writing: bool, source: io::Error) -> RegisterError {
        match source.raw_os_error() {
            Some(libc::EIO) => RegisterError::NoRegister { cpu: self.cpu, register },
            Some(libc::EPERM | libc::EACCES) => {
                RegisterError::NotPermitted { path: self.path.clone(), writing, source }
            }
            _ => RegisterError::System { cpu: self.cpu, register, source },
        }
    }

    /// Reads a register.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn read(&self, register: u32) -> Result<u64, RegisterError> {
        let mut bytes = [0; 8];
        let read = self.file.read_exact_at(&mut bytes, u64::from(register));
        read.map_err(|source| self.failed(register, false, source))?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Writes a register.
    ///
    /// # Errors
    /// [`RegisterError`]; also where the registers were opened for reading only.
    pub fn write(&self, register: u32, value: u64) -> Result<(), RegisterError> {
        let written = if self.writable {
            self.file.write_all_at(&value.to_ne_bytes(), u64::from(register))
        } else {
            Err(io::Error::from_raw_os_error(libc::EPERM))
        };
        written.map_err(|source| self.failed(register, true, source))
    }
}
