//! The columns of the table: a mode on a kernel. Each can be turned on by one line.

/// A kernel that conformance is tested on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The kernel of the machine that runs the tests.
    Host,
    /// User-Mode Linux with its modules: IPVS, and the legacy iptables only.
    Full,
    /// User-Mode Linux without netfilter and without IPVS.
    Bare,
    /// A kernel of Debian under QEMU; see [`kernels`](super::kernels).
    Debian,
}

impl Kernel {
    pub fn has_sctp(self) -> bool {
        matches!(self, Kernel::Full | Kernel::Debian)
    }

    pub fn describe(self) -> &'static str {
        match self {
            Kernel::Host => "the machine's own kernel",
            Kernel::Full => "a guest kernel with all of its modules",
            Kernel::Bare => "a guest kernel without netfilter",
            Kernel::Debian => "a kernel of Debian's cloud images",
        }
    }
}

/// The iptables programs on Tripod's PATH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tools {
    Nft,
    Legacy,
}

impl Tools {
    /// The program to which all names link.
    pub fn program(self) -> &'static str {
        match self {
            Tools::Nft => "/usr/sbin/xtables-nft-multi",
            Tools::Legacy => "/usr/sbin/xtables-legacy-multi",
        }
    }
}

/// A mode on a kernel.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name in the table and the tests, including the kernel.
    pub name: &'static str,
    pub kernel: Kernel,
    /// The value of `--proxy-mode`.
    pub asked: &'static str,
    /// The expected answer of `/proxyMode`: an unexpected fallback is a failure.
    pub mode: &'static str,
    /// `--without`, in a variant of a column; see [`without`](super::without).
    pub without: Option<&'static str>,
    /// Flags beyond `--proxy-mode` and `--without`.
    pub flags: &'static [&'static str],
    pub tools: Tools,
    /// A chain in the nat table that shows which backend was used, if any.
    pub chain: Option<&'static str>,
    /// Whether it is run and shown.
    pub on: bool,
}

pub(super) const fn iptables(name: &'static str, kernel: Kernel, tools: Tools, on: bool) -> Column {
    Column {
        name,
        kernel,
        asked: "iptables",
        mode: "iptables",
        without: None,
        flags: &["--iptables-min-sync-period=0s"],
        tools,
        chain: Some("KUBE-SERVICES"),
        on,
    }
}

pub(super) const fn redirect(name: &'static str, kernel: Kernel, tools: Tools) -> Column {
    Column {
        name,
        kernel,
        asked: "userspace",
        mode: "userspace",
        without: None,
        flags: &["--userspace-capture=redirect"],
        tools,
        chain: Some("TRIPOD-USERSPACE"),
        on: true,
    }
}

pub(super) const fn local(name: &'static str, kernel: Kernel) -> Column {
    Column {
        name,
        kernel,
        asked: "userspace",
        mode: "userspace",
        without: None,
        flags: &["--userspace-capture=local"],
        tools: Tools::Legacy,
        chain: None,
        on: true,
    }
}

pub(super) const IPVS: Column = Column {
    name: "full ipvs",
    kernel: Kernel::Full,
    asked: "ipvs",
    mode: "ipvs",
    without: None,
    flags: &["--ipvs-min-sync-period=0s"],
    tools: Tools::Legacy,
    chain: Some("KUBE-SERVICES"),
    on: true,
};

pub(super) const NFTABLES: Column = Column {
    name: "host nftables",
    kernel: Kernel::Host,
    asked: "nftables",
    mode: "nftables",
    without: None,
    // As in kube-proxy, node ports are served only at the primary addresses unless others are
    // named.
    flags: &[
        "--iptables-min-sync-period=0s",
        "--nodeport-addresses=0.0.0.0/0,::/0",
    ],
    tools: Tools::Nft,
    chain: None,
    on: true,
};

pub const COLUMNS: [Column; 10] = [
    iptables("host iptables-nft", Kernel::Host, Tools::Nft, true),
    iptables("host iptables-legacy", Kernel::Host, Tools::Legacy, true),
    redirect("host userspace-redirect", Kernel::Host, Tools::Nft),
    local("host userspace-local", Kernel::Host),
    NFTABLES,
    IPVS,
    iptables("full iptables-legacy", Kernel::Full, Tools::Legacy, true),
    redirect("full userspace-redirect", Kernel::Full, Tools::Legacy),
    local("full userspace-local", Kernel::Full),
    local("bare userspace-local", Kernel::Bare),
];

impl Column {
    /// Returns whether rules of its mode are written with iptables.
    pub fn writes_with_iptables(&self) -> bool {
        self.chain.is_some()
    }

    /// Returns its flags, except those that also occur in `others`, the flags of a case.
    pub fn flags_beside(&self, others: &[&str]) -> impl Iterator<Item = &'static str> {
        let name = |flag: &str| flag.split('=').next().unwrap_or(flag).to_owned();
        let others: Vec<String> = others.iter().map(|flag| name(flag)).collect();
        let flags = self.flags.iter().copied();
        flags.filter(move |flag| !others.contains(&name(flag)))
    }
}

/// Some of the columns.
pub type Columns = fn(&Column) -> bool;

pub fn columns() -> impl Iterator<Item = &'static Column> {
    COLUMNS.iter().filter(|column| column.on)
}

pub fn column(name: &str) -> &'static Column {
    let found = COLUMNS.iter().find(|column| column.name == name);
    found.unwrap_or_else(|| panic!("no column {name:?}"))
}

pub fn ipvs(column: &Column) -> bool {
    column.mode == "ipvs"
}

pub fn in_iptables(column: &Column) -> bool {
    column.mode == "iptables"
}

pub fn nftables(column: &Column) -> bool {
    column.mode == "nftables"
}

/// Modes in which rules that refuse also see packets that the node itself sends to a service
/// address.
pub fn output_is_asked(column: &Column) -> bool {
    ipvs(column) || nftables(column)
}

/// Modes with node ports on loopback addresses only if those are named.
pub fn loopback_by_name(column: &Column) -> bool {
    ipvs(column) || nftables(column)
}

pub fn userspace(column: &Column) -> bool {
    column.mode == "userspace"
}

/// Modes in which the node has an object at a cluster IP, which refuses when there are no
/// endpoints.
pub fn no_silence(column: &Column) -> bool {
    !in_iptables(column) && !nftables(column)
}

/// iptables mode without this word, or nftables mode without that.
fn rules_without(column: &Column, word: &str, nft: &str) -> bool {
    in_iptables(column) && column.without == Some(word)
        || nftables(column) && column.without == Some(nft)
}

pub fn rules_without_addrtype(column: &Column) -> bool {
    rules_without(column, "addrtype", "nft-fib")
}

pub fn rules_without_conntrack(column: &Column) -> bool {
    in_iptables(column) && column.without == Some("conntrack")
}

pub fn rules_without_recent(column: &Column) -> bool {
    rules_without(column, "recent", "nft-dynset")
}

pub fn rules_without_statistic(column: &Column) -> bool {
    rules_without(column, "statistic", "nft-numgen")
}

pub fn rules_without_reject(column: &Column) -> bool {
    rules_without(column, "reject", "nft-reject")
}

pub fn userspace_without_reject(column: &Column) -> bool {
    column.mode == "userspace" && column.without == Some("reject")
}

pub fn ipvs_without_reject(column: &Column) -> bool {
    ipvs(column) && column.without == Some("reject")
}

pub fn nftables_without_fib(column: &Column) -> bool {
    nftables(column) && column.without == Some("nft-fib")
}

pub fn ipvs_without_wrr(column: &Column) -> bool {
    ipvs(column) && column.without == Some("ipvs-wrr")
}
