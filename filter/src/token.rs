//! The words of SQL92 filters. The longest match wins and keywords may be in any case, as with Apache's scanner; so `0x5` is a zero and a
//! name, and `--` is a comment only when its line ends.
use logos::Logos;

/// A word. Its text is a slice of the source, where it matters.
#[derive(Logos, Clone, Copy, Debug, PartialEq, Eq)]
#[logos(skip r"[ \t\n\r\f]+")]
#[logos(skip("--[^\\n\\r]*(\\n|\\r|\\r\\n)", allow_greedy = true))]
#[logos(skip r"/\*([^*]|\*+[^*/])*\*+/")]
pub enum Token<'t> {
    #[regex("(?i-u:NOT)", priority = 10)]
    Not,
    #[regex("(?i-u:AND)", priority = 10)]
    And,
    #[regex("(?i-u:OR)", priority = 10)]
    Or,
    #[regex("(?i-u:BETWEEN)", priority = 10)]
    Between,
    #[regex("(?i-u:IN)", priority = 10)]
    In,
    #[regex("(?i-u:IS)", priority = 10)]
    Is,
    #[regex("(?i-u:NULL)", priority = 10)]
    Null,
    #[regex("(?i-u:TRUE)", priority = 10)]
    True,
    #[regex("(?i-u:FALSE)", priority = 10)]
    False,
    #[regex("(?i-u:CONTAINS)", priority = 10)]
    Contains,
    #[regex("(?i-u:STARTSWITH)", priority = 10)]
    StartsWith,
    #[regex("(?i-u:ENDSWITH)", priority = 10)]
    EndsWith,
    #[token("=")]
    Equal,
    #[token("<>")]
    NotEqual,
    #[token(">")]
    Greater,
    #[token(">=")]
    GreaterEqual,
    #[token("<")]
    Less,
    #[token("<=")]
    LessEqual,
    #[token("(")]
    Open,
    #[token(")")]
    Close,
    #[token(",")]
    Comma,
    #[token("+")]
    Plus,
    #[token("-")]
    Minus,
    /// Without leading zeros; an `L` behind it says nothing, and zero has none.
    #[regex(r"0|[1-9][0-9]*[lL]?")]
    Integer(&'t str),
    #[regex(r"[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?")]
    #[regex(r"\.[0-9]+([eE][+-]?[0-9]+)?")]
    #[regex(r"[0-9]+[eE][+-]?[0-9]+")]
    Decimal(&'t str),
    /// With its quotes; a quote inside is doubled.
    #[regex(r"'([^']|'')*'")]
    Text(&'t str),
    #[regex(r"[a-zA-Z_$][a-zA-Z0-9_$]*")]
    Name(&'t str),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Result<Token<'_>, ()>> {
        Token::lexer(text).collect()
    }

    #[test]
    fn the_longest_match_wins() {
        assert_eq!(words("0x5"), [Ok(Token::Integer("0")), Ok(Token::Name("x5"))]);
        assert_eq!(words("05"), [Ok(Token::Integer("0")), Ok(Token::Integer("5"))]);
        assert_eq!(
            words("1e 1.5e+"),
            [
                Ok(Token::Integer("1")),
                Ok(Token::Name("e")),
                Ok(Token::Decimal("1.5")),
                Ok(Token::Name("e")),
                Ok(Token::Plus)
            ]
        );
        assert_eq!(words("notes Not"), [Ok(Token::Name("notes")), Ok(Token::Not)]);
        assert_eq!(words("'it''s'"), [Ok(Token::Text("'it''s'"))]);
        assert_eq!(
            words("5LAND"),
            [Ok(Token::Integer("5L")), Ok(Token::Name("AND"))].map(|w| match w {
                Ok(Token::Name("AND")) => Ok(Token::And),
                other => other,
            })
        );
    }

    #[test]
    fn comments_are_passed_over_when_they_end() {
        assert_eq!(words("a --b\n/* c */ /***/ /* * / **/ d"), [Ok(Token::Name("a")), Ok(Token::Name("d"))]);
        assert_eq!(words("--5"), [Ok(Token::Minus), Ok(Token::Minus), Ok(Token::Integer("5"))]);
        assert_eq!(words("/* a")[0], Err(()));
    }
}
