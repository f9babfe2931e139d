use std::fmt;

/// A word of an expression, and its column, from 1 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub kind: Kind,
    pub column: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    And,
    Or,
    Not,
    Open,
    Close,
    Comparison(Comparison),
    /// A field, a number, an address or a name, by its place.
    Word(String),
    /// Text in quotes.
    Quoted(String),
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Contains,
}

/// What is wrong with an expression, and at which column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {what}")]
pub(crate) struct ExpressionError {
    pub column: usize,
    pub what: String,
}

impl ExpressionError {
    pub fn new(column: usize, what: impl Into<String>) -> ExpressionError {
        ExpressionError { column, what: what.into() }
    }
}

/// Longest first, so that each is taken whole.
const SIGNS: &[(&str, Kind)] = &[
    ("&&", Kind::And),
    ("||", Kind::Or),
    ("==", Kind::Comparison(Comparison::Equal)),
    ("!=", Kind::Comparison(Comparison::NotEqual)),
    (">=", Kind::Comparison(Comparison::GreaterOrEqual)),
    ("<=", Kind::Comparison(Comparison::LessOrEqual)),
    (">", Kind::Comparison(Comparison::Greater)),
    ("<", Kind::Comparison(Comparison::Less)),
    ("!", Kind::Not),
    ("(", Kind::Open),
    (")", Kind::Close),
];

const NAMES: &[(&str, Kind)] = &[
    ("and", Kind::And),
    ("or", Kind::Or),
    ("not", Kind::Not),
    ("eq", Kind::Comparison(Comparison::Equal)),
    ("ne", Kind::Comparison(Comparison::NotEqual)),
    ("gt", Kind::Comparison(Comparison::Greater)),
    ("ge", Kind::Comparison(Comparison::GreaterOrEqual)),
    ("lt", Kind::Comparison(Comparison::Less)),
    ("le", Kind::Comparison(Comparison::LessOrEqual)),
    ("contains", Kind::Comparison(Comparison::Contains)),
];

/// Takes an expression apart. The last token is [`Kind::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, ExpressionError> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let column = text[..text.len() - rest.len()].chars().count() + 1;
        let (kind, bytes) = match rest.chars().next() {
            None => {
                tokens.push(Token { kind: Kind::End, column });
                return Ok(tokens);
            }
            Some('"') => {
                let Some(end) = rest[1..].find('"') else {
                    return Err(ExpressionError::new(column, "this quotation mark is not closed"));
                };
                (Kind::Quoted(rest[1..=end].to_owned()), end + 2)
            }
            Some(first) => match SIGNS.iter().find(|(sign, _)| rest.starts_with(sign)) {
                Some((sign, kind)) => (kind.clone(), sign.len()),
                None if is_of_word(first) => {
                    let end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
                    let word = &rest[..end];
                    let name = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
                    (name.map_or_else(|| Kind::Word(word.to_owned()), |(_, kind)| kind.clone()), end)
                }
                None => {
                    let what = match first {
                        '=' => "a comparison is ==".to_owned(),
                        '&' | '|' => format!("write {first}{first}"),
                        _ => format!("`{first}` has no meaning here; text goes into quotation marks"),
                    };
                    return Err(ExpressionError::new(column, what));
                }
            },
        };
        tokens.push(Token { kind, column });
        rest = &rest[bytes..];
    }
}

/// Fields, numbers, names, MAC and IP addresses.
fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '-')
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Word(word) => write!(f, "`{word}`"),
            Kind::Quoted(text) => write!(f, "\"{text}\""),
            Kind::End => f.write_str("the end"),
            other => {
                let sign = SIGNS.iter().chain(NAMES).find(|(_, kind)| kind == other);
                write!(f, "`{}`", sign.map_or("", |(sign, _)| sign))
            }
        }
    }
}
