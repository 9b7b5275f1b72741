//! Canonical JSON as report data hashes it, against the examples of RFC 8785.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use serde_json::{Value, json};
use sha2::{Digest as _, Sha384};
use tec_trustee::report_data::{HashAlgorithm, primary};

fn canonical(value: &Value) -> String {
    serde_json_canonicalizer::to_string(value).unwrap()
}

/// RFC 8785, section 3.2.2 and 3.2.3: literals, escapes, numbers, order of members.
#[test]
fn the_sample_object_is_written_as_in_the_rfc() {
    let text = r#"{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"#;
    let value: Value = serde_json::from_str(text).unwrap();
    let expected = concat!(
        r#"{"literals":[null,true,false],"#,
        r#""numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"#,
        "\"string\":\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}"
    );
    assert_eq!(canonical(&value), expected);
}

/// RFC 8785, section 3.2.3: members are sorted by UTF-16 code units, not by code points.
#[test]
fn members_are_sorted_by_utf_16() {
    let value = json!({
        "\u{20ac}": "Euro Sign", "\r": "Carriage Return", "\u{fb33}": "Hebrew Letter Dalet With Dagesh",
        "1": "One", "\u{1f600}": "Emoji: Grinning Face", "\u{80}": "Control",
        "\u{f6}": "Latin Small Letter O With Diaeresis",
    });
    let names = ["\\r", "1", "\u{80}", "\u{f6}", "\u{20ac}", "\u{1f600}", "\u{fb33}"];
    let text = canonical(&value);
    let places: Vec<usize> =
        names.iter().map(|name| text.find(&format!("\"{name}\":")).unwrap()).collect();
    assert!(places.is_sorted(), "{text}");
}

/// RFC 8785, appendix B: doubles by their bits.
#[test]
fn numbers_are_written_as_in_the_table_of_the_rfc() {
    for (bits, text) in [
        (0x0000_0000_0000_0000, "0"),
        (0x8000_0000_0000_0000, "0"),
        (0x0000_0000_0000_0001, "5e-324"),
        (0x8000_0000_0000_0001, "-5e-324"),
        (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
        (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
        (0x4340_0000_0000_0000, "9007199254740992"),
        (0xc340_0000_0000_0000, "-9007199254740992"),
        (0x4430_0000_0000_0000, "295147905179352830000"),
        (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
        (0x44b5_2d02_c7e1_4af6, "1e+23"),
        (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
        (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
        (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
        (0x444b_1ae4_d6e2_ef50, "1e+21"),
        (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
        (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
        (0x41b3_de43_5555_5553, "333333333.3333332"),
        (0x41b3_de43_5555_5554, "333333333.33333325"),
        (0x41b3_de43_5555_5555, "333333333.3333333"),
        (0x41b3_de43_5555_5556, "333333333.3333334"),
        (0x41b3_de43_5555_5557, "333333333.33333343"),
        (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
        (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
    ] {
        assert_eq!(canonical(&json!(f64::from_bits(bits))), text, "{bits:016x}");
    }
}

#[test]
fn report_data_is_the_digest_of_that_text() {
    let key = json!({"\u{fb33}": 1e21, "b": "\u{f}", "\u{1f600}": [true, null]});
    let text = concat!(
        r#"{"additional-evidence":"","nonce":"bm9uY2U=","tee-pubkey":{"b":"\u000f","#,
        "\"\u{1f600}\":[true,null],\"\u{fb33}\":1e+21}}"
    );
    let data = primary("bm9uY2U=", &key, "", HashAlgorithm::Sha384).unwrap();
    assert_eq!(data[..], Sha384::digest(text)[..]);
}
