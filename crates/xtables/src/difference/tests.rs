use super::*;
use crate::{observed::Interest, rule::Target};

fn interest(_: Table, chain: &str) -> Interest {
    match chain {
        "WHOLE" => Interest::Whole,
        "SHARED" => Interest::ByRule,
        "JOINT" => Interest::Joint,
        _ => Interest::Foreign,
    }
}

fn desired() -> RuleSet {
    let chain = |name: &'static str, contents| FixedChain {
        table: Table::Nat,
        name: name.into(),
        contents,
    };
    let jump = |from, to: &str, place| Jump {
        table: Table::Nat,
        from,
        rule: Rule::new().jump(to),
        place,
    };
    let rules = || vec![Rule::new().target(Target::Return)];
    RuleSet {
        chains: vec![
            chain("WHOLE", Contents::Exactly(rules())),
            chain("SHARED", Contents::Shared { closing: rules() }),
            chain("JOINT", Contents::AtLeast(rules())),
        ],
        jumps: vec![
            jump("OUTPUT", "WHOLE", Place::InOrder),
            jump("OUTPUT", "SHARED", Place::InOrder),
            jump("INPUT", "JOINT", Place::Top),
            jump("PREROUTING", "WHOLE", Place::End),
        ],
    }
}

/// The steps that repair a table nat with the kernel's chains, our chains, which are right, and
/// these lines.
fn repair(declared: &str, rules: &str) -> String {
    let mut observed = Observed::new(interest);
    let declared = declared.split(' ').map(|name| format!(":{name} - [0:0]"));
    let base = BASE_CHAINS.map(|name| format!(":{name} ACCEPT [0:0]"));
    let rules = rules.split('\n').map(|rule| format!("-A {rule}"));
    for line in base.into_iter().chain(declared).chain(rules) {
        observed.line(Table::Nat, &line);
    }
    difference(&observed, &desired(), Family::V4).to_string()
}

const ALL: &str = "WHOLE SHARED JOINT";
const RIGHT: &str = "WHOLE -j RETURN\nSHARED -j RETURN\nJOINT -j DROP\nJOINT -j RETURN\n\
                     OUTPUT -j WHOLE\nOUTPUT -j THEIRS\nOUTPUT -j SHARED\n\
                     INPUT -j THEIRS\nINPUT -j JOINT\nPREROUTING -j WHOLE\nPREROUTING -j THEIRS";

#[test]
fn what_is_right_stays() {
    assert_eq!(repair(ALL, RIGHT), "");
}

#[test]
fn all_comes_where_nothing_was() {
    assert_eq!(
        repair("THEIRS", "OUTPUT -j THEIRS"),
        "*nat\n:WHOLE - [0:0]\n:SHARED - [0:0]\n:JOINT - [0:0]\n-A WHOLE -j RETURN\n\
         -A JOINT -j RETURN\n-I INPUT -j JOINT\n-I OUTPUT -j SHARED\n-I OUTPUT -j WHOLE\n\
         -A SHARED -j RETURN\n-A PREROUTING -j WHOLE\nCOMMIT\n"
    );
}

#[test]
fn each_chain_is_repaired_in_its_way() {
    for (there, instead, repaired) in [
        (
            "WHOLE -j RETURN",
            "WHOLE -j DROP",
            ":WHOLE - [0:0]\n-A WHOLE -j RETURN\n",
        ),
        (
            "SHARED -j RETURN",
            "SHARED -j RETURN\nSHARED -j WHOLE",
            "-A SHARED -j RETURN\n",
        ),
        ("\nJOINT -j RETURN", "", "-A JOINT -j RETURN\n"),
    ] {
        let rules = RIGHT.replace(there, instead);
        let expected = match repaired {
            "" => String::new(),
            lines => format!("*nat\n{lines}COMMIT\n"),
        };
        assert_eq!(repair(ALL, &rules), expected, "{instead}");
    }
}

#[test]
fn jumps_come_to_their_places_and_others_to_our_chains_go() {
    for (there, instead, repaired) in [
        ("\nINPUT -j JOINT", "", "-I INPUT -j JOINT\n"),
        ("\nPREROUTING -j WHOLE", "", "-A PREROUTING -j WHOLE\n"),
        ("\nOUTPUT -j WHOLE", "", "-I OUTPUT -j WHOLE\n"),
        (
            "OUTPUT -j WHOLE\nOUTPUT -j THEIRS\nOUTPUT -j SHARED",
            "OUTPUT -j SHARED\nOUTPUT -j THEIRS\nOUTPUT -j WHOLE",
            "-D OUTPUT -j WHOLE\n-I OUTPUT -j WHOLE\n",
        ),
        (
            "OUTPUT -j WHOLE",
            "OUTPUT -j WHOLE\nOUTPUT -j WHOLE",
            "-D OUTPUT -j WHOLE\n-D OUTPUT -j WHOLE\n-I OUTPUT -j WHOLE\n",
        ),
        // Deleting the first would leave one after rules of others.
        (
            "\nINPUT -j THEIRS",
            "\nOUTPUT -j THEIRS\nOUTPUT -j WHOLE\nINPUT -j THEIRS",
            "-D OUTPUT -j WHOLE\n-D OUTPUT -j WHOLE\n-I OUTPUT -j WHOLE\n",
        ),
        // The last one stays.
        (
            "PREROUTING -j WHOLE",
            "PREROUTING -j WHOLE\nPREROUTING -j WHOLE",
            "-D PREROUTING -j WHOLE\n",
        ),
        // Another program may have written one of them.
        ("INPUT -j JOINT", "INPUT -j JOINT\nINPUT -j JOINT", ""),
        (
            "INPUT -j JOINT",
            "INPUT -p tcp -g WHOLE\nINPUT -p tcp -j JOINT\nINPUT -j JOINT",
            "-D INPUT -p tcp -g WHOLE\n",
        ),
    ] {
        let rules = RIGHT.replace(there, instead);
        let expected = match repaired {
            "" => String::new(),
            lines => format!("*nat\n{lines}COMMIT\n"),
        };
        assert_eq!(repair(ALL, &rules), expected, "{instead}");
    }
}
