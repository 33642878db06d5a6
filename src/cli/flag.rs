//! Flags: name, meaning, and where their values are stored. The rules are those of pflag,
//! which kube-proxy's flags follow.

use std::{path::PathBuf, time::Duration};

use clap::{Arg, ArgAction, builder::ValueParser};

use super::{Options, help};
use crate::{config::notation, duration};

/// A flag of the command line.
pub(super) struct Flag {
    /// Name of the flag, without dashes.
    pub(super) name: &'static str,
    /// One letter that means the same.
    pub(super) short: Option<char>,
    /// Placeholder of the value in the help.
    pub(super) value_name: &'static str,
    pub(super) help: &'static str,
    /// Text in the short help, on one line; empty: the same as `help`.
    pub(super) line: &'static str,
    pub(super) field: Field,
    /// The value that counts if it is not given; empty: its default.
    pub(super) not_given: &'static str,
    /// Whether it has an effect even if there is a configuration file; so do all of some headings.
    pub(super) beside_file: bool,
    /// Whether it is not in the help.
    pub(super) hidden: bool,
    /// Whether it is in the short help as well.
    pub(super) common: bool,
}

/// Where a flag's value is stored. The default of a flag with a field is the
/// field's value before any flag is read.
#[derive(Clone, Copy)]
pub(super) enum Field {
    Switch(fn(&mut Options) -> &mut bool),
    Int(fn(&mut Options) -> &mut i32),
    Float(fn(&mut Options) -> &mut f32),
    Time(fn(&mut Options) -> &mut Duration),
    Text(fn(&mut Options) -> &mut String),
    /// Several values, separated by commas or given by repeating the flag.
    List(fn(&mut Options) -> &mut Vec<String>),
    /// A setter, and the default as the help shows it.
    Set(fn(&mut Options, &str) -> Result<(), String>, &'static str),
    /// As `Set`, but each value adds to those before it.
    Add(fn(&mut Options, &str) -> Result<(), String>),
    /// As `Set`, with the value that the flag alone, without a value, means.
    SetOr(fn(&mut Options, &str) -> Result<(), String>, &'static str),
}

/// Stores the value of a flag.
pub(super) fn store<T>(into: &mut T, value: Result<T, String>) -> Result<(), String> {
    *into = value?;
    Ok(())
}

/// Stores the value of a flag that is a path; an empty one is none.
pub(super) fn path(into: &mut Option<PathBuf>, text: &str) -> Result<(), String> {
    *into = Some(text).filter(|path| !path.is_empty()).map(Into::into);
    Ok(())
}

impl Flag {
    pub(super) const fn new(
        name: &'static str,
        value_name: &'static str,
        field: Field,
        help: &'static str,
    ) -> Flag {
        Flag {
            name,
            short: None,
            value_name,
            help,
            line: "",
            field,
            not_given: "",
            beside_file: false,
            hidden: false,
            common: false,
        }
    }

    pub(super) const fn switch(
        name: &'static str,
        at: fn(&mut Options) -> &mut bool,
        help: &'static str,
    ) -> Flag {
        Flag::new(name, "BOOL", Field::Switch(at), help)
    }

    pub(super) const fn int(
        name: &'static str,
        at: fn(&mut Options) -> &mut i32,
        help: &'static str,
    ) -> Flag {
        Flag::new(name, "N", Field::Int(at), help)
    }

    pub(super) const fn time(
        name: &'static str,
        at: fn(&mut Options) -> &mut Duration,
        help: &'static str,
    ) -> Flag {
        Flag::new(name, "DURATION", Field::Time(at), help)
    }

    pub(super) const fn text(
        name: &'static str,
        value_name: &'static str,
        at: fn(&mut Options) -> &mut String,
        help: &'static str,
    ) -> Flag {
        Flag::new(name, value_name, Field::Text(at), help)
    }

    pub(super) const fn beside_file(mut self) -> Flag {
        self.beside_file = true;
        self
    }

    /// Sets the value that counts if the flag is not given, where the help must show kube-proxy's
    /// default instead.
    pub(super) const fn not_given(mut self, value: &'static str) -> Flag {
        self.not_given = value;
        self
    }

    pub(super) const fn hidden(mut self) -> Flag {
        self.hidden = true;
        self
    }

    /// Marks the flag as one that most users look for.
    pub(super) const fn common(mut self) -> Flag {
        self.common = true;
        self
    }

    /// Sets the text in the short help and in completions.
    pub(super) const fn line(mut self, line: &'static str) -> Flag {
        self.line = line;
        self
    }

    pub(super) const fn short(mut self, letter: char) -> Flag {
        self.short = Some(letter);
        self
    }

    /// Stores a value.
    pub(super) fn set(&self, options: &mut Options, text: &str) -> Result<(), String> {
        match self.field {
            Field::Switch(at) => {
                let value = notation::boolean(text);
                *at(options) = value.ok_or("it must be true or false")?;
            }
            Field::Int(at) => {
                let value = notation::whole(text);
                *at(options) = value.ok_or("it must be a whole number of 32 bits")?;
            }
            Field::Float(at) => {
                let value = text.parse().ok().filter(|value: &f32| value.is_finite());
                *at(options) = value.ok_or("it must be a number")?;
            }
            Field::Time(at) => *at(options) = duration::parse(text)?,
            Field::Text(at) => *at(options) = text.to_owned(),
            Field::List(at) => {
                let items = notation::list(text).ok_or("a quote must end where its item ends")?;
                at(options).extend(items);
            }
            Field::Set(set, _) | Field::Add(set) | Field::SetOr(set, _) => set(options, text)?,
        }
        Ok(())
    }

    /// The default as the help shows it; empty if there is nothing to show.
    pub(super) fn default(&self) -> String {
        let options = &mut Options::default();
        match self.field {
            Field::Switch(at) => at(options).then(|| "true".to_owned()).unwrap_or_default(),
            Field::Int(at) => at(options).to_string(),
            Field::Float(at) => at(options).to_string(),
            Field::Time(at) => match *at(options) {
                Duration::ZERO => String::new(),
                time => duration::format(time),
            },
            Field::Text(at) => at(options).clone(),
            Field::List(at) => at(options).join(","),
            Field::Set(_, default) => default.to_owned(),
            Field::Add(_) | Field::SetOr(..) => String::new(),
        }
    }

    /// Returns the value that follows from `values`, one for each time that the flag is given: the
    /// last one, or all together.
    pub(super) fn joined<'a>(&self, values: impl Iterator<Item = &'a String>) -> String {
        let values: Vec<&str> = values.map(String::as_str).collect();
        match self.field {
            Field::List(_) => format!("[{}]", values.join(",")),
            Field::Add(_) => values.join(","),
            _ => values
                .last()
                .map_or_else(String::new, |last| (*last).to_owned()),
        }
    }

    /// The value if the flag is not given.
    pub(super) fn initial(&self) -> String {
        if !self.not_given.is_empty() {
            return self.not_given.to_owned();
        }
        let options = &mut Options::default();
        match self.field {
            Field::Switch(at) => at(options).to_string(),
            Field::Time(at) => duration::format(*at(options)),
            Field::List(at) => format!("[{}]", at(options).join(",")),
            _ => self.default(),
        }
    }

    /// Returns whether `argument` is this flag, with its value in the next
    /// argument.
    pub(super) fn is_before_value(&self, argument: &str) -> bool {
        let named = match argument.strip_prefix("--") {
            Some(name) => name == self.name,
            None => argument
                .strip_prefix('-')
                .is_some_and(|letter| self.short.is_some_and(|short| letter == short.to_string())),
        };
        named && !matches!(self.field, Field::Switch(_) | Field::SetOr(..))
    }

    /// Converts the flag to clap's type.
    pub(super) fn arg(&'static self, heading: &'static str) -> Arg {
        let default = match self.default() {
            none if none.is_empty() => none,
            default => format!(" [default: {default}]"),
        };
        let text = format!("{}{default}", self.help);
        let line = match self.line {
            "" => help::wrapped(&text),
            line => format!("{line}{default}"),
        };
        let arg = Arg::new(self.name)
            .help(line)
            .long_help(text)
            .long(self.name)
            .value_name(self.value_name)
            .help_heading(heading)
            .hide(self.hidden)
            .hide_short_help(!self.common)
            .action(ArgAction::Append)
            .value_parser(ValueParser::new(|text: &str| {
                // Setting the value shows whether it is valid.
                let mut scratch = Options::default();
                self.set(&mut scratch, text).map(|()| text.to_owned())
            }));
        let arg = match self.short {
            Some(letter) => arg.short(letter),
            None => arg,
        };
        let missing = match self.field {
            Field::Switch(_) => "true",
            Field::SetOr(_, missing) => missing,
            // pflag takes the next argument whatever it looks like.
            _ => return arg.num_args(1).allow_hyphen_values(true),
        };
        arg.num_args(0..=1)
            .require_equals(true)
            .default_missing_value(missing)
    }
}
