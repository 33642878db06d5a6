//! Rules of nf_tables, as they are sent and as they are read.

use std::fmt;

use netlink::{Malformed, Message, Request};

use super::{
    compile::compile,
    element::Counted,
    expression::Expression,
    statement::Statement,
    table::Table,
    userdata::{self, Comment, UserData},
};

// enum nft_rule_attributes
pub(super) const TABLE: u16 = 1;
pub(super) const CHAIN: u16 = 2;
pub(super) const HANDLE: u16 = 3;
pub(super) const EXPRESSIONS: u16 = 4;
pub(super) const USERDATA: u16 = 7;
/// `NFTA_LIST_ELEM` of `linux/netfilter/nf_tables.h`.
const ELEMENT: u16 = 1;
/// `NFTNL_UDATA_RULE_COMMENT` of `libnftnl/udata.h`.
pub(super) const COMMENT: u8 = 0;

/// A rule: conditions and actions, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Its statements, in order.
    pub statements: Vec<Statement>,
    /// Comment that `nft list` shows; `None`: it has none.
    pub comment: Option<Comment>,
}

impl Rule {
    /// Returns a rule without a comment.
    pub fn new(statements: impl IntoIterator<Item = Statement>) -> Rule {
        Rule {
            statements: statements.into_iter().collect(),
            comment: None,
        }
    }

    /// Returns the same rule with a comment.
    #[must_use]
    pub fn commented(mut self, comment: &str) -> Rule {
        self.comment = Some(Comment::new(comment));
        self
    }

    /// The expressions that the kernel gets.
    pub fn expressions(&self) -> Vec<Expression> {
        compile(&self.statements)
    }

    pub(super) fn write(&self, request: Request) -> Request {
        let request = request.nested(EXPRESSIONS, |r| {
            let each = |r: Request, e: &Expression| r.nested(ELEMENT, |r| e.write(r));
            self.expressions().iter().fold(r, each)
        });
        let user = UserData::default().comment(COMMENT, self.comment.as_ref());
        match user.octets() {
            Some(octets) => request.attribute(USERDATA, octets),
            None => request,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, statement) in self.statements.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            write!(f, "{space}{statement}")?;
        }
        match &self.comment {
            Some(comment) => write!(f, " comment \"{}\"", comment.as_str()),
            None => Ok(()),
        }
    }
}

/// A rule as it is in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRule {
    /// Name of its table.
    pub table: String,
    /// Name of its chain.
    pub chain: String,
    /// Its expressions, in the form of [`Expression::comparable`].
    pub expressions: Vec<Expression>,
    /// Comment that `nft list` shows; `None`: it has none.
    pub comment: Option<Comment>,
}

impl ListedRule {
    /// Returns true if the kernel would have `rule` in this form, apart from counts.
    pub fn is(&self, rule: &Rule) -> bool {
        let desired = rule.expressions().into_iter().map(Expression::comparable);
        self.comment == rule.comment && desired.eq(self.expressions.iter().cloned())
    }

    /// Returns the rule that a message of a dump has.
    pub fn read(message: Message<'_>) -> Result<ListedRule, Malformed> {
        let mut rule = ListedRule {
            table: String::new(),
            chain: String::new(),
            expressions: Vec::new(),
            comment: None,
        };
        for attribute in message.attributes(super::HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                TABLE => attribute.text()?.clone_into(&mut rule.table),
                CHAIN => attribute.text()?.clone_into(&mut rule.chain),
                EXPRESSIONS => {
                    let found = Expression::read_all(attribute)?.into_iter();
                    rule.expressions = found.map(Expression::comparable).collect();
                }
                USERDATA => rule.comment = userdata::comment(attribute.payload, COMMENT),
                _ => {}
            }
        }
        Ok(rule)
    }
}

/// Reads the counters of the rule in a message, if it is of that chain. Kernels before 4.12 list
/// the rules of all chains (`nf_tables_dump_rules`).
pub(super) fn counted(
    message: Message<'_>,
    table: &Table,
    chain: &str,
) -> Result<Vec<Counted>, Malformed> {
    let (mut is_listed, mut found) = (true, Vec::new());
    for attribute in message.attributes(super::HEADER) {
        let attribute = attribute?;
        match attribute.kind {
            TABLE => is_listed &= attribute.text()? == table.name,
            CHAIN => is_listed &= attribute.text()? == chain,
            EXPRESSIONS => found = Expression::read_all(attribute)?,
            _ => {}
        }
    }
    let counted = found.iter().filter_map(Counted::of);
    Ok(counted.filter(|_| is_listed).collect())
}
