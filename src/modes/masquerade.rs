//! Rules for packets that are marked to be masqueraded, which modes with kube-proxy's chains
//! have in common.

use xtables::{
    extension::Extension,
    features::Features,
    rule::{CtState, Mark, Match, Negatable, Rule, Target},
};

/// Returns the rule that marks packets with these `bits`.
pub fn marking(bits: u32) -> Rule {
    Rule::new().target(Target::Mark(Mark::set(bits)))
}

/// The rules that masquerade marked packets.
pub fn masquerading(bits: u32, features: Features) -> [Rule; 3] {
    let mark = Mark::set(bits);
    let random_fully = features.contains(Extension::RandomFully);
    let masquerade = Rule::new().target(Target::Masquerade { random_fully });
    [
        Rule::new()
            .with(Match::Mark(Negatable::IsNot(mark)))
            .target(Target::Return),
        // A packet may pass here again, decapsulated or encrypted, and must not be
        // masqueraded twice.
        Rule::new().target(Target::Mark(Mark { mask: 0, ..mark })),
        masquerade.commented(features, "kubernetes service traffic requiring SNAT"),
    ]
}

/// Returns the rules that let service traffic through: its first packets, which are marked,
/// and later ones, where connections are tracked.
pub fn forwarding(bits: u32, features: Features) -> Vec<Rule> {
    let accept = |text, one| {
        let rule = Rule::new().commented(features, text).with(one);
        rule.target(Target::Accept)
    };
    let first = Match::Mark(Negatable::Is(Mark::set(bits)));
    let mut rules = vec![accept("kubernetes forwarding rules", first)];
    if features.contains(Extension::Conntrack) {
        let answers = &[CtState::Related, CtState::Established];
        let later = Match::ConnectionState(Negatable::Is(answers));
        rules.push(accept("kubernetes forwarding conntrack rule", later));
    }
    rules
}
