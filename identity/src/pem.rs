//! Text around binary data, as other tools write it: base64 between a line BEGIN and a line END (RFC 7468).

use data_encoding::BASE64;

const LINE: usize = 64;

/// Writes data under a label.
pub(crate) fn encode(label: &str, data: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    let base64 = BASE64.encode(data);
    let mut rest = base64.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

/// Whether the text has a line that begins data under this label.
pub(crate) fn begins(label: &str, text: &str) -> bool {
    let begin = format!("-----BEGIN {label}-----");
    text.lines().any(|line| line.trim_end() == begin)
}

/// Reads the data under a label. Text before and behind it is ignored. `None` where there is none.
pub(crate) fn decode(label: &str, text: &str) -> Option<Vec<u8>> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let mut lines = text.lines().map(str::trim_end).skip_while(|line| *line != begin).skip(1);
    let mut base64 = String::new();
    loop {
        let line = lines.next()?;
        if line == end {
            return BASE64.decode(base64.as_bytes()).ok();
        }
        base64.push_str(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(data in prop::collection::vec(any::<u8>(), 0..500)) {
            let text = encode("JET TEST", &data);
            prop_assert!(text.lines().all(|line| line.len() <= LINE));
            prop_assert_eq!(decode("JET TEST", &format!("a comment\n{text}more")), Some(data));
            prop_assert_eq!(decode("JET OTHER", &text), None);
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in ".{0,300}") {
            decode("JET TEST", &text);
        }
    }

    #[test]
    fn half_a_text_is_none() {
        let text = encode("JET TEST", &[7; 100]);
        for bytes in 0..text.len() - 1 {
            assert_eq!(decode("JET TEST", &text[..bytes]), None, "{bytes}");
        }
    }
}
