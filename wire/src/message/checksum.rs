//! Combination of CRC32Cs: a message's, from those of its parts, which were made separately.

/// CRC32C's polynomial, with the lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Powers of x modulo the polynomial: at index n, x to the power of 8 * 2^n, by which a CRC is multiplied to
/// move it 2^n bytes on.
const POWERS: [u32; 32] = {
    let mut powers = [1 << 23; 32];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = product(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// Returns the product of two polynomials over GF(2), modulo CRC32C's.
const fn product(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 1 << 31;
    while bit > 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = (b >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(b & 1));
        bit >>= 1;
    }
    product
}

/// Returns the CRC32C of two byte ranges, one behind the other, from the CRC32C of each. `second_bytes` is
/// the length of the second.
///
/// It takes 32 steps for each bit that is set in the length, and none if `first` is 0, as it is for an empty
/// range.
pub fn combine_crc32c(first: u32, second: u32, second_bytes: u32) -> u32 {
    let mut shifted = first;
    let mut left = if first == 0 { 0 } else { second_bytes };
    while left > 0 {
        shifted = product(POWERS[left.trailing_zeros() as usize], shifted);
        left &= left - 1;
    }
    shifted ^ second
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn parts_make_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..9000), cut in 0..9000usize) {
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            let (made, length) = (crc32c::crc32c(second), u32::try_from(second.len()).unwrap());
            prop_assert_eq!(combine_crc32c(crc32c::crc32c(first), made, length), crc32c::crc32c(&bytes));
        }

        #[test]
        fn lengths_of_any_size_are_as_the_library_says(first: u32, second: u32, bytes: u32) {
            let expected = crc32c::crc32c_combine(first, second, bytes as usize);
            prop_assert_eq!(combine_crc32c(first, second, bytes), expected);
        }
    }

    #[test]
    fn fragments_make_a_message() {
        let bytes: Vec<u8> = (0..1_000_000u32).map(|n| (n / 7).to_le_bytes()[0]).collect();
        let parts = bytes.chunks(256 << 10);
        let crc = parts.fold(0, |crc, part| {
            combine_crc32c(crc, crc32c::crc32c(part), u32::try_from(part.len()).unwrap())
        });
        assert_eq!(crc, crc32c::crc32c(&bytes));
        let nothing: Vec<u8> = vec![];
        assert_eq!(combine_crc32c(crc, crc32c::crc32c(&nothing), 0), crc);
    }
}
