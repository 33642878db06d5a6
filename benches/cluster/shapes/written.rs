//! What a process wrote into nf_tables, from the outside: the kernel numbers transactions and
//! tables.

use std::process::Command;

use nftables::Rules;

/// The numbers at one moment.
pub struct Written {
    generation: Option<u32>,
    tables: String,
}

impl Written {
    /// Reads them in the namespace of this thread.
    pub fn so_far() -> Written {
        let generation = Rules::open().and_then(|mut rules| rules.generation());
        Written {
            generation: generation.ok(),
            tables: tables(),
        }
    }

    /// Says what was written since then; nothing if this kernel has no nf_tables.
    pub fn since(&self) -> Option<String> {
        let now = Written::so_far();
        let count = now.generation?.wrapping_sub(self.generation?);
        Some(match count {
            0 => "nothing".to_owned(),
            1 => format!("1 transaction{}", self.replaced(&now)),
            _ => format!("{count} transactions{}", self.replaced(&now)),
        })
    }

    /// A table that is removed and added again gets a new number.
    fn replaced(&self, now: &Written) -> &'static str {
        if self.tables == now.tables {
            ""
        } else {
            " (tables replaced)"
        }
    }
}

/// All tables with their numbers, as `nft` lists them.
fn tables() -> String {
    let listed = Command::new("nft").args(["-j", "list", "tables"]).output();
    listed.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}
