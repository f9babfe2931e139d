use std::net::IpAddr;
use std::str::FromStr;

use crate::report::Report;

use super::field::{self, Field, Type, Value};
use super::token::{Comparison, ExpressionError, Kind, Token, tokens};

/// Upper bound on parentheses and negations in each other: each takes some stack.
const DEPTH_MAX: usize = 64;

/// A condition on a packet.
#[derive(Clone, Debug)]
pub(super) enum Expression {
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Not(Box<Expression>),
    /// The packet has the field; one that is true or false must be true.
    Has(&'static Field),
    Compare(&'static Field, Comparison, Literal),
}

/// What a field is compared with.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal {
    Number(u64),
    Decimal(f64),
    Bool(bool),
    Text(String),
    Address(IpAddr),
}

impl Expression {
    /// Whether it asks for this field.
    pub fn uses(&self, name: &str) -> bool {
        match self {
            Expression::And(a, b) | Expression::Or(a, b) => a.uses(name) || b.uses(name),
            Expression::Not(a) => a.uses(name),
            Expression::Has(field) | Expression::Compare(field, ..) => field.name() == name,
        }
    }

    pub fn holds(&self, report: &Report) -> bool {
        match self {
            Expression::And(a, b) => a.holds(report) && b.holds(report),
            Expression::Or(a, b) => a.holds(report) || b.holds(report),
            Expression::Not(a) => !a.holds(report),
            Expression::Has(field) => (field.of)(report).is_some_and(|value| !matches!(value, Value::Bool(false))),
            Expression::Compare(field, comparison, literal) => {
                (field.of)(report).is_some_and(|value| compare(&value, *comparison, literal))
            }
        }
    }
}

fn compare(value: &Value<'_>, comparison: Comparison, literal: &Literal) -> bool {
    if let (Value::Text(value), Comparison::Contains, Literal::Text(text)) = (value, comparison, literal) {
        return value.contains(text.as_str());
    }
    let order = match (value, literal) {
        (Value::Number(value), Literal::Number(number)) => Some(value.cmp(number)),
        (Value::Decimal(value), Literal::Decimal(number)) => value.partial_cmp(number),
        (Value::Bool(value), Literal::Bool(other)) => Some(value.cmp(other)),
        (Value::Text(value), Literal::Text(text)) => Some((**value).cmp(text.as_str())),
        // An opcode has a number as well.
        (Value::Opcode(_, value), Literal::Number(number)) => Some(u64::from(*value).cmp(number)),
        (Value::Opcode(name, _), Literal::Text(text)) => Some((*name).cmp(text.as_str())),
        (Value::Address(value), Literal::Address(address)) => Some(value.cmp(address)),
        _ => None,
    };
    order.is_some_and(|order| match comparison {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Contains => false,
    })
}

impl FromStr for Expression {
    type Err = ExpressionError;

    /// Reads an expression: `or` of `and` of comparisons, each of a field on the left and a value on the right.
    fn from_str(text: &str) -> Result<Expression, ExpressionError> {
        let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
        let expression = parser.either()?;
        match parser.next() {
            Token { kind: Kind::End, .. } => Ok(expression),
            token => Err(ExpressionError::new(token.column, format!("{} was not expected; && or || is", token.kind))),
        }
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> &Kind {
        &self.tokens[self.at].kind
    }

    /// The next token; the end again and again.
    fn next(&mut self) -> Token {
        let token = self.tokens[self.at].clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn either(&mut self) -> Result<Expression, ExpressionError> {
        let mut left = self.both()?;
        while *self.peek() == Kind::Or {
            self.next();
            left = Expression::Or(Box::new(left), Box::new(self.both()?));
        }
        Ok(left)
    }

    fn both(&mut self) -> Result<Expression, ExpressionError> {
        let mut left = self.condition()?;
        while *self.peek() == Kind::And {
            self.next();
            left = Expression::And(Box::new(left), Box::new(self.condition()?));
        }
        Ok(left)
    }

    fn condition(&mut self) -> Result<Expression, ExpressionError> {
        let Token { kind, column } = self.next();
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(ExpressionError::new(column, format!("more than {DEPTH_MAX} conditions are in each other")));
        }
        let condition = match kind {
            Kind::Not => Expression::Not(Box::new(self.condition()?)),
            Kind::Open => {
                let inner = self.either()?;
                let close = self.next();
                if close.kind != Kind::Close {
                    let what = format!("`)` was expected, for the `(` at column {column}, and not {}", close.kind);
                    return Err(ExpressionError::new(close.column, what));
                }
                inner
            }
            Kind::Word(name) => self.comparison(field::find(&name, column)?)?,
            other => return Err(ExpressionError::new(column, format!("a field was expected, and not {other}"))),
        };
        self.depth -= 1;
        Ok(condition)
    }

    fn comparison(&mut self, field: &'static Field) -> Result<Expression, ExpressionError> {
        let Kind::Comparison(comparison) = *self.peek() else { return Ok(Expression::Has(field)) };
        let sign = self.next();
        if comparison == Comparison::Contains && field.kind != Type::Text {
            return Err(ExpressionError::new(
                sign.column,
                format!("{} is no text: contains is for text", field.name()),
            ));
        }
        let Token { kind, column } = self.next();
        let (Kind::Word(text) | Kind::Quoted(text)) = &kind else {
            return Err(ExpressionError::new(column, format!("a value was expected, and not {kind}")));
        };
        let literal = literal(field, text).map_err(|what| ExpressionError::new(column, what))?;
        Ok(Expression::Compare(field, comparison, literal))
    }
}

/// The value that `text` is for a field.
fn literal(field: &Field, text: &str) -> Result<Literal, String> {
    let number = || match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    let literal = match field.kind {
        Type::Number => number().map(Literal::Number),
        Type::Decimal => text.parse().ok().map(Literal::Decimal),
        Type::Bool => match text {
            "true" | "1" => Some(Literal::Bool(true)),
            "false" | "0" => Some(Literal::Bool(false)),
            _ => None,
        },
        Type::Text => Some(Literal::Text(text.to_owned())),
        Type::Address => text.parse().ok().map(Literal::Address),
        Type::Opcode => number().map(Literal::Number).or_else(|| field::opcode(text).map(Literal::Text)),
    };
    literal.ok_or_else(|| format!("{} is {}, and `{text}` is none", field.name(), field.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<Expression>().unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_said_with_its_column() {
        for (text, expected) in [
            ("", "column 1: a field was expected, and not the end"),
            ("psn >", "column 6: a value was expected, and not the end"),
            ("psn = 5", "column 5: a comparison is =="),
            ("psn > 5 & nak", "column 9: write &&"),
            ("psn > 5 nak", "column 9: `nak` was not expected; && or || is"),
            ("(psn > 5 || nak", "column 16: `)` was expected, for the `(` at column 1, and not the end"),
            ("psn == many", "column 8: psn is a number, and `many` is none"),
            ("bth.psnn == 5", "column 1: there is no field `bth.psnn`; did you mean bth.psn? --help lists them"),
            ("opcode == RC_WRITE", "column 11: opcode is an opcode as in RC_SEND_ONLY, and `RC_WRITE` is none"),
            ("ip.src == 10.0.0", "column 11: ip_src is an IP address, and `10.0.0` is none"),
            ("psn contains 5", "column 5: psn is no text: contains is for text"),
            ("comment == \"fault", "column 12: this quotation mark is not closed"),
            ("nak $", "column 5: `$` has no meaning here; text goes into quotation marks"),
            ("ü$", "column 2: `$` has no meaning here; text goes into quotation marks"),
        ] {
            assert_eq!(error(text), expected, "{text}");
        }
        assert!(error(&"(".repeat(100_000)).contains("more than 64"));
        assert!(error(&"!".repeat(100_000)).contains("more than 64"));
    }

    #[test]
    fn and_binds_tighter_than_or_and_words_are_signs() {
        let form = |text: &str| match text.parse::<Expression>().unwrap() {
            Expression::Or(_, b) => matches!(*b, Expression::And(..)),
            _ => false,
        };
        assert!(form("nak || bad && rnr") && form("nak or bad and not rnr") && !form("(nak || bad) && rnr"));
        assert!((0..200).map(|_| "nak").collect::<Vec<_>>().join(" && ").parse::<Expression>().is_ok());
    }
}
