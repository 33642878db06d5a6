//! Properties that tell a rule from others, whoever made it.

use netlink::{Malformed, Message};

use super::{
    expression::Expression,
    rule,
    userdata::{self, Comment},
};

/// `NFTA_MATCH_NAME` and `NFTA_TARGET_NAME`, `NFTA_MATCH_INFO`: matches and targets of
/// iptables within nf_tables.
const XT_NAME: u16 = 1;
const XT_INFO: u16 = 3;

/// The parts of a rule that `tripod trace` names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSummary {
    /// Its comment, of nf_tables or of iptables; `None`: it has none.
    pub comment: Option<String>,
    /// The sets and maps in which it looks something up.
    pub sets: Vec<String>,
    /// Whether it answers that the packet is refused.
    pub refuses: bool,
    /// Its iptables target other than the verdicts of nf_tables; `None`: it has none.
    pub target: Option<String>,
}

impl RuleSummary {
    /// Reads the answer to a request for one rule.
    pub fn read(message: Message<'_>) -> Result<RuleSummary, Malformed> {
        let mut summary = RuleSummary::default();
        for attribute in message.attributes(super::HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                rule::EXPRESSIONS => {
                    for expression in attribute.nested() {
                        summary.add(&Expression::read(expression?)?);
                    }
                }
                rule::USERDATA => {
                    let comment = userdata::comment(attribute.payload, rule::COMMENT);
                    let text = comment.as_ref().map(Comment::as_str).map(str::to_owned);
                    summary.comment = text.or(summary.comment);
                }
                _ => {}
            }
        }
        Ok(summary)
    }

    fn add(&mut self, expression: &Expression) {
        let name = expression.text(XT_NAME).unwrap_or_default();
        match (&*expression.name, name) {
            ("lookup", _) => self.sets.extend(expression.set().map(str::to_owned)),
            ("reject", _) => self.refuses = true,
            // struct xt_comment_info: text that ends with NUL.
            ("match", "comment") => {
                let info = expression.bytes(XT_INFO).unwrap_or_default();
                let text = info.split(|byte| *byte == 0).next().unwrap_or_default();
                self.comment = Some(String::from_utf8_lossy(text).into_owned());
            }
            ("target", name) => {
                self.refuses |= name == "REJECT";
                self.target = Some(name.to_owned());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink::{Messages, Request};
    use nix::libc;

    use super::{super::kind, *};

    /// `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA` of `linux/netfilter/nf_tables.h`.
    const NAME: u16 = 1;
    const DATA: u16 = 2;

    #[test]
    fn a_rule_of_iptables_is_known_by_its_comment_and_target() {
        let expression = |r: Request, kind: &str, name: &str, info: &[u8]| {
            r.nested(1, |r| {
                r.text(NAME, kind)
                    .nested(DATA, |r| r.text(XT_NAME, name).attribute(XT_INFO, info))
            })
        };
        let request = Request::new(kind(libc::NFT_MSG_NEWRULE), 0, "read", "")
            .nfgenmsg(2)
            .nested(rule::EXPRESSIONS, |r| {
                let r = expression(r, "match", "comment", b"default/web has no endpoints\0\0");
                let r = expression(r, "match", "tcp", &[0; 4]);
                expression(r, "target", "REJECT", &[0; 4])
            });
        let mut wire = Vec::new();
        request.write(&mut wire, 0, 0);
        let message = Messages::new(&wire).next().unwrap().unwrap();
        let expected = RuleSummary {
            comment: Some("default/web has no endpoints".to_owned()),
            sets: Vec::new(),
            refuses: true,
            target: Some("REJECT".to_owned()),
        };
        assert_eq!(RuleSummary::read(message), Ok(expected));
    }
}
