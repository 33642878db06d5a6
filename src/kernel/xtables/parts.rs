//! Cutting a batch into smaller ones, for kernels that take no transaction of
//! its size: without CAP_NET_ADMIN in the initial user namespace a netlink
//! socket's buffer cannot be raised above `net.core.wmem_max` (`socket(7)`,
//! SO_SNDBUFFORCE), and iptables-nft sends a table as one message.

/// Returns `batch` as batches of at most `lines` rules each, which in their order do
/// the same, though not in one step: a chain is declared, and so emptied, by
/// the first part that has its table only.
pub fn parts(batch: &str, lines: usize) -> Vec<String> {
    let mut parts = Vec::new();
    let (mut table, mut part, mut rules) = ("", String::new(), 0);
    for line in batch.lines() {
        if line.starts_with('*') {
            table = line;
        }
        if line == "COMMIT" && rules == 0 && part == format!("{table}\n") && !parts.is_empty() {
            part.clear();
            continue;
        }
        part.push_str(line);
        part.push('\n');
        if line == "COMMIT" {
            parts.push(std::mem::take(&mut part));
            rules = 0;
        } else if line.starts_with('-') {
            rules += 1;
            if rules == lines {
                part.push_str("COMMIT\n");
                parts.push(std::mem::replace(&mut part, format!("{table}\n")));
                rules = 0;
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_the_order_and_declare_once() {
        let batch = "*filter\n:A - [0:0]\n-A A 1\nCOMMIT\n\
                     *nat\n:B - [0:0]\n:C - [0:0]\n-A B 1\n-A B 2\n-A C 3\n-I D 4\nCOMMIT\n";
        assert_eq!(
            parts(batch, 2),
            [
                "*filter\n:A - [0:0]\n-A A 1\nCOMMIT\n",
                "*nat\n:B - [0:0]\n:C - [0:0]\n-A B 1\n-A B 2\nCOMMIT\n",
                "*nat\n-A C 3\n-I D 4\nCOMMIT\n",
            ]
        );
        assert_eq!(parts(batch, 100).concat(), batch);
    }
}
