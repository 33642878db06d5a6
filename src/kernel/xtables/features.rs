//! Which matches and targets a node's iptables and kernel have.

/// What rules may use here; see `Match` and `Target` for what each one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Features {
    /// `-m comment`.
    pub comment: bool,
    /// `-m statistic --mode random`.
    pub statistic: bool,
    /// `-m recent`.
    pub recent: bool,
    /// `-m addrtype`.
    pub addrtype: bool,
    /// `-m mark` and `-j MARK`.
    pub mark: bool,
    /// `-m conntrack --ctstate`.
    pub conntrack: bool,
    /// `-m nfacct`.
    pub nfacct: bool,
    /// `-m set`.
    pub set: bool,
    /// `-m physdev`.
    pub physdev: bool,
    /// `-j REJECT`.
    pub reject: bool,
    /// `-j DNAT`.
    pub dnat: bool,
    /// `-j MASQUERADE`.
    pub masquerade: bool,
    /// `-j MASQUERADE --random-fully`.
    pub random_fully: bool,
}

impl Features {
    /// A kernel that lacks nothing.
    pub const ALL: Features = Features {
        comment: true,
        statistic: true,
        recent: true,
        addrtype: true,
        mark: true,
        conntrack: true,
        nfacct: true,
        set: true,
        physdev: true,
        reject: true,
        dnat: true,
        masquerade: true,
        random_fully: true,
    };
}
