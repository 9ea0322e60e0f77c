//! Numbers in property values, as Java's `Integer.parseInt`, `Long.parseLong` and `Double.parseDouble` take them: what one of them
//! throws on is an error here, and nothing else is.

/// The zeros of the decimal digits that Java knows in its 16-bit characters; nine more digits follow each.
const ZEROS: [u16; 37] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620,
    0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
];

fn digit(c: char) -> Option<i64> {
    let c = u16::try_from(c as u32).ok()?;
    let zero = ZEROS[ZEROS.partition_point(|zero| *zero <= c).checked_sub(1)?];
    (c - zero < 10).then_some(i64::from(c - zero))
}

/// A signed 64-bit number: an optional sign and digits of any script.
pub fn long(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() {
        return None;
    }
    // Towards the smallest number, which has no positive twin.
    let negated = digits.chars().try_fold(0i64, |sum, c| sum.checked_mul(10)?.checked_sub(digit(c)?))?;
    if negative { Some(negated) } else { negated.checked_neg() }
}

/// A signed 32-bit number.
pub fn int(text: &str) -> Option<i32> {
    long(text).and_then(|value| value.try_into().ok())
}

/// A double: blanks around it, a sign, decimal or hexadecimal digits, an exponent and a type suffix are accepted.
pub fn double(text: &str) -> Option<f64> {
    let text = text.trim_matches(|c| c <= ' ');
    let (negative, body) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let value = match body {
        "NaN" => f64::NAN,
        "Infinity" => f64::INFINITY,
        _ => {
            let number = body.strip_suffix(['f', 'F', 'd', 'D']).unwrap_or(body);
            match body.strip_prefix("0x").or(body.strip_prefix("0X")) {
                // The digits of a hexadecimal one may end in d or f, but its exponent may not.
                Some(_) => hexadecimal(&number[2..])?,
                None => decimal(number)?,
            }
        }
    };
    Some(if negative { -value } else { value })
}

fn decimal(text: &str) -> Option<f64> {
    // Rust also takes words and a lone exponent; digits, points and exponents mean the same in both.
    let plain = |c: u8| c.is_ascii_digit() || matches!(c, b'.' | b'e' | b'E' | b'+' | b'-');
    let starts = text.as_bytes().first().is_some_and(|c| c.is_ascii_digit() || *c == b'.');
    (starts && text.bytes().all(plain)).then(|| text.parse().ok()).flatten()
}

/// `digits.digits p exponent`, rounded to even like any other literal.
fn hexadecimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = text.split_once(['p', 'P'])?;
    let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if unsigned.is_empty() || !unsigned.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    // Beyond this the result is 0 or infinite whatever the digits are: they are at most as many as a property is long.
    let mut power: i64 = exponent.parse::<i64>().unwrap_or(i64::MAX).clamp(-1_000_000, 1_000_000);
    if exponent.starts_with('-') && power > 0 {
        power = -power;
    }
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (mut bits, mut rest) = (0u64, false);
    for (at, c) in whole.chars().chain(fraction.chars()).enumerate() {
        let digit = u64::from(c.to_digit(16)?);
        let in_fraction = at >= whole.len();
        if bits >> 60 == 0 {
            bits = bits << 4 | digit;
            power -= if in_fraction { 4 } else { 0 };
        } else {
            // Dropped digits decide about rounding only by being there.
            rest |= digit != 0;
            power += if in_fraction { 0 } else { 4 };
        }
    }
    Some(scaled(bits, rest, power))
}

/// `bits * 2^power`, rounded to nearest, ties to even; `rest`: something lies below the last bit.
fn scaled(bits: u64, rest: bool, power: i64) -> f64 {
    if bits == 0 {
        return 0.0;
    }
    let top = 63 - i64::from(bits.leading_zeros()) + power; // the exponent of the leading bit
    if top > 1023 {
        return f64::INFINITY;
    }
    if top < -1075 {
        return 0.0;
    }
    // The double's last bit: 53 in all, or fewer for what is below the smallest normal one.
    let last = (top - 52).max(-1074);
    let (sticky, power) = (u128::from(bits) << 1 | u128::from(rest), power - 1);
    let kept = match last - power {
        drop @ 1.. => {
            let (kept, below, half) = (sticky >> drop, sticky & ((1 << drop) - 1), 1 << (drop - 1));
            kept + u128::from(below > half || below == half && kept & 1 == 1)
        }
        up => sticky << -up,
    };
    // At most 2^53, so exact; the factor is a power of two and the product is no rounding either.
    kept as f64 * power_of_two(last)
}

/// 2^power for -1074..=1023.
fn power_of_two(power: i64) -> f64 {
    match power {
        -1022.. => f64::from_bits(((power + 1023) as u64) << 52),
        _ => f64::from_bits(1 << (power + 1074)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_a_sign_and_digits_and_nothing_else() {
        for (text, want) in [
            ("5", Some(5)),
            ("+5", Some(5)),
            ("-05", Some(-5)),
            ("９", Some(9)),
            ("\u{665}\u{966}", Some(50)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("-", None),
            ("+-5", None),
            (" 5", None),
            ("5.0", None),
            ("5L", None),
            ("𝟓", None), // outside Java's 16 bits
            ("½", None),
        ] {
            assert_eq!(long(text), want, "{text:?}");
        }
        assert_eq!((int("2147483647"), int("-2147483648"), int("2147483648")), (Some(i32::MAX), Some(i32::MIN), None));
    }

    #[test]
    fn doubles_are_javas() {
        for (text, want) in [
            ("5", 5.0),
            (" \t5\u{1} ", 5.0),
            ("5.", 5.0),
            (".5", 0.5),
            ("5e0", 5.0),
            ("-5E-1", -0.5),
            ("5d", 5.0),
            ("5F", 5.0),
            ("1e999", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
            ("Infinity", f64::INFINITY),
            ("0x1p3", 8.0),
            ("0x.8P1", 1.0),
            ("-0X1.8p+1d", -3.0),
            ("0x1p-1074", f64::from_bits(1)),
            ("0x1p-1075", 0.0),
            ("0x1.8p-1075", f64::from_bits(1)),
            ("0x1.fffffffffffff8p0", 2.0),
            ("0x1.fffffffffffff7p0", 1.9999999999999998),
            ("0x123456789abcdef0123p-76", f64::from_bits(0x3fb2_3456_789a_bcdf)),
            ("0x1.00000000000008p0", 1.0),
            ("0x1.000000000000080000000000001p0", 1.0000000000000002),
            ("0x1.00000000000018p0", 1.0000000000000004),
            ("0x1fp3d", 248.0),
            ("0x1p1024", f64::INFINITY),
            ("0x0p5", 0.0),
        ] {
            assert_eq!(double(text), Some(want), "{text:?}");
        }
        assert!(double("NaN").is_some_and(f64::is_nan) && double("-NaN").is_some_and(f64::is_nan));
        assert!(double("-0.0").is_some_and(|zero| zero == 0.0 && zero.is_sign_negative()));
        for text in
            ["", " ", "x", "inf", "nan", "infinity", "5dd", "1_0", "0x1", "0x1p", "0xp1", "e5", "+-5", "５", "1e", "."]
        {
            assert_eq!(double(text), None, "{text:?}");
        }
    }
}
