//! Safetensors headers from outside: one error for each way in which one can be wrong (safetensors#401, mlx#3363),
//! and the same layout as the `safetensors` package reads where nothing is.

use deltaic_format::safetensors::{
    Layout, MAX_HEADER_LEN, SafetensorsError, header_len, parse_header,
};
use deltaic_format::{Dtype, FormatError};
use deltaic_tests::weights::Stream;
use serde_json::{Value, json};
use std::mem::discriminant;

fn parse(header: &str, data_len: u64) -> Result<Layout, SafetensorsError> {
    parse_header(header.as_bytes(), data_len)
}

fn entry(dtype: &str, shape: &[u64], begin: u64, end: u64) -> Value {
    json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]})
}

#[track_caller]
fn refused(header: &str, data_len: u64, expected: &SafetensorsError) {
    let error = parse(header, data_len).expect_err(header);
    assert_eq!(&error, expected, "{header}");
}

/// Whether it is refused as [`SafetensorsError::HeaderInvalid`], with `why` in its words.
#[track_caller]
fn invalid(header: &[u8], why: &str) {
    let error = parse_header(header, 2).expect_err("the header is wrong");
    let SafetensorsError::HeaderInvalid { why: said } = &error else {
        panic!("{error}");
    };
    assert!(said.contains(why), "{said:?} does not say {why:?}");
}

#[test]
fn a_length_of_2_63_is_refused() {
    let found = 1 << 63;
    assert_eq!(
        header_len(u64::to_le_bytes(found), 1000),
        Err(SafetensorsError::HeaderTooLarge { found })
    );
}

#[test]
fn a_header_over_100_mb_is_refused_even_if_it_is_there() {
    let found = MAX_HEADER_LEN + 1;
    assert_eq!(
        header_len(found.to_le_bytes(), u64::MAX),
        Err(SafetensorsError::HeaderTooLarge { found })
    );
    assert_eq!(
        header_len(MAX_HEADER_LEN.to_le_bytes(), u64::MAX),
        Ok(MAX_HEADER_LEN)
    );
}

#[test]
fn a_file_that_ends_within_its_header_is_truncated() {
    assert_eq!(
        header_len(100u64.to_le_bytes(), 107),
        Err(SafetensorsError::HeaderTruncated {
            needed: 108,
            found: 107
        })
    );
    assert_eq!(header_len(100u64.to_le_bytes(), 108), Ok(100));
}

#[test]
fn a_file_that_ends_within_its_data_is_truncated() {
    let header = json!({"a": entry("F32", &[4], 0, 16)}).to_string();
    refused(
        &header,
        15,
        &SafetensorsError::DataTruncated {
            expected: 16,
            found: 15,
        },
    );
    refused(
        &header,
        0,
        &SafetensorsError::DataTruncated {
            expected: 16,
            found: 0,
        },
    );
}

#[test]
fn bytes_after_the_last_tensor_are_refused() {
    let header = json!({"a": entry("F32", &[4], 0, 16)}).to_string();
    refused(&header, 19, &SafetensorsError::TrailingBytes { bytes: 3 });
    refused("{}", 1, &SafetensorsError::TrailingBytes { bytes: 1 });
}

#[test]
fn overlapping_tensors_are_refused() {
    let header = json!({"a": entry("U8", &[8], 0, 8), "b": entry("U8", &[8], 4, 12)}).to_string();
    let overlap = SafetensorsError::Overlap {
        name: "b".to_owned(),
        begin: 4,
        end: 8,
    };
    refused(&header, 12, &overlap);
}

#[test]
fn two_tensors_on_the_same_bytes_are_refused() {
    let header = json!({"a": entry("U8", &[8], 0, 8), "b": entry("U8", &[8], 0, 8)}).to_string();
    let overlap = SafetensorsError::Overlap {
        name: "b".to_owned(),
        begin: 0,
        end: 8,
    };
    refused(&header, 8, &overlap);
}

#[test]
fn reversed_offsets_are_refused() {
    let header = json!({"a": entry("U8", &[8], 8, 0)}).to_string();
    let reversed = SafetensorsError::ReversedOffsets {
        name: "a".to_owned(),
        begin: 8,
        end: 0,
    };
    refused(&header, 8, &reversed);
}

#[test]
fn holes_are_refused() {
    let header = json!({"a": entry("U8", &[4], 0, 4), "b": entry("U8", &[4], 6, 10)}).to_string();
    refused(
        &header,
        10,
        &SafetensorsError::Hole {
            name: "b".to_owned(),
            bytes: 2,
        },
    );
    let header = json!({"a": entry("U8", &[4], 1, 5)}).to_string();
    refused(
        &header,
        5,
        &SafetensorsError::Hole {
            name: "a".to_owned(),
            bytes: 1,
        },
    );
}

#[test]
fn a_span_other_than_shape_times_dtype_is_refused() {
    let header = json!({"a": entry("BF16", &[3, 2], 0, 10)}).to_string();
    let span = SafetensorsError::WrongSpan {
        name: "a".to_owned(),
        span: 10,
        expected: 12,
    };
    refused(&header, 10, &span);
}

#[test]
fn duplicate_names_are_refused() {
    let header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
        "a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    refused(
        header,
        2,
        &SafetensorsError::DuplicateName {
            name: "a".to_owned(),
        },
    );
    // The same name in other letters of JSON.
    let header = header.replacen("\"a\"", "\"\\u0061\"", 1);
    refused(
        &header,
        2,
        &SafetensorsError::DuplicateName {
            name: "a".to_owned(),
        },
    );
}

#[test]
fn duplicate_keys_in_an_entry_are_refused() {
    for twice in [
        "\"dtype\":\"U8\"",
        "\"shape\":[2]",
        "\"data_offsets\":[0,2]",
    ] {
        let header =
            format!(r#"{{"a":{{"dtype":"U8","shape":[2],"data_offsets":[0,2],{twice}}}}}"#);
        invalid(header.as_bytes(), "duplicate field");
    }
}

#[test]
fn duplicate_metadata_is_refused() {
    invalid(
        br#"{"__metadata__":{"a":"b"},"__metadata__":{}}"#,
        "__metadata__ stands there twice",
    );
}

#[test]
fn duplicate_keys_of_metadata_are_refused() {
    invalid(br#"{"__metadata__":{"a":"b","a":"c"}}"#, "twice");
}

#[test]
fn metadata_that_is_no_map_of_texts_is_refused() {
    for metadata in ["{\"a\":1}", "[]", "\"pt\"", "{\"a\":null}"] {
        invalid(
            format!(r#"{{"__metadata__":{metadata}}}"#).as_bytes(),
            "invalid type",
        );
    }
}

#[test]
fn a_shape_that_overflows_is_refused() {
    let too_large = [
        vec![u64::MAX],
        vec![1 << 32, 1 << 32],
        vec![1 << 63, 2],
        vec![1 << 61],
        vec![(1 << 48) + 8],
    ];
    for shape in too_large {
        let header = json!({"a": entry("F64", &shape, 0, 8)}).to_string();
        let error = parse(&header, 8).expect_err("an overflow");
        let shape_error = SafetensorsError::Shape(FormatError::Magic { what: "" });
        assert_eq!(discriminant(&error), discriminant(&shape_error), "{error}");
    }
}

/// A tensor with a dim of 0 has no bytes, however large the other dims are (SPEC.md §8).
#[test]
fn a_zero_dimension_beside_huge_ones_makes_an_empty_tensor() {
    for shape in [[1 << 40, 1 << 40, 0], [0, u64::MAX, 2]] {
        let header = json!({"a": entry("U8", &shape, 0, 0)}).to_string();
        assert_eq!(parse(&header, 0).unwrap().tensors[0].byte_len(), 0);
        let header = json!({"a": entry("U8", &shape, 0, 1)}).to_string();
        assert!(matches!(
            parse(&header, 1),
            Err(SafetensorsError::WrongSpan { .. })
        ));
    }
}

#[test]
fn a_shape_that_fills_no_whole_bytes_is_refused() {
    let header = json!({"a": entry("F4", &[3], 0, 2)}).to_string();
    assert!(matches!(parse(&header, 2), Err(SafetensorsError::Shape(_))));
}

#[test]
fn an_unknown_dtype_is_refused() {
    for dtype in ["F7", "bf16", "", "F8_E4M3FN"] {
        let header = json!({"a": entry(dtype, &[1], 0, 1)}).to_string();
        let unknown = SafetensorsError::UnknownDtype {
            name: "a".to_owned(),
            dtype: dtype.to_owned(),
        };
        refused(&header, 1, &unknown);
    }
}

#[test]
fn negative_and_broken_numbers_are_refused() {
    let good = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    assert!(parse(good, 2).is_ok());
    for (from, to) in [
        ("[2]", "[-2]"),
        ("[2]", "[2.0]"),
        ("[2]", "[2e0]"),
        ("[2]", "[\"2\"]"),
        ("[2]", "2"),
        ("[2]", "[18446744073709551616]"),
        ("[0,2]", "[-1,1]"),
        ("[0,2]", "[0,2,3]"),
        ("[0,2]", "[0]"),
        ("[0,2]", "{\"0\":0,\"1\":2}"),
        ("\"U8\"", "1"),
    ] {
        let header = good.replacen(from, to, 1);
        let error = parse(&header, 2).expect_err(&header);
        assert!(
            matches!(error, SafetensorsError::HeaderInvalid { .. }),
            "{header}: {error}"
        );
    }
}

#[test]
fn missing_keys_are_refused() {
    invalid(
        br#"{"a":{"shape":[2],"data_offsets":[0,2]}}"#,
        "missing field `dtype`",
    );
    invalid(
        br#"{"a":{"dtype":"U8","data_offsets":[0,2]}}"#,
        "missing field `shape`",
    );
    invalid(
        br#"{"a":{"dtype":"U8","shape":[2]}}"#,
        "missing field `data_offsets`",
    );
}

#[test]
fn what_the_package_reads_past_is_read_past() {
    let header =
        br#"{"__metadata__":null,"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"stride":1}}"#;
    let layout = parse_header(header, 2).unwrap();
    assert_eq!(layout.tensors.len(), 1);
}

#[test]
fn what_is_not_json_is_refused() {
    for header in [
        &b"{"[..],
        b"{\"a\"",
        b"{} {}",
        b"{}x",
        b"{'a':1}",
        b"{\"a\":}",
        b"{\"\xff\":1}",
    ] {
        let error = parse_header(header, 0).expect_err("this is not JSON");
        assert!(
            matches!(error, SafetensorsError::HeaderInvalid { .. }),
            "{error}"
        );
    }
    // Deep nesting must not overflow the stack.
    let deep = format!("{{\"a\":{}", "[".repeat(1 << 20));
    assert!(parse(&deep, 0).is_err());
}

#[test]
fn a_header_that_does_not_begin_with_a_brace_is_refused() {
    for header in [
        &b""[..],
        b" {}",
        b"\n{}",
        b"[]",
        b"\xef\xbb\xbf{}",
        b"null",
        b"\0\0",
    ] {
        invalid(header, "it does not begin with {");
    }
}

#[test]
fn padding_and_metadata_are_accepted() {
    assert_eq!(
        parse("{}   ", 0),
        Ok(Layout {
            tensors: Vec::new(),
            data_len: 0
        })
    );
    let layout = parse(r#"{"__metadata__":{"format":"pt"}}     "#, 0).unwrap();
    assert!(layout.tensors.is_empty());
}

/// A random header that the `safetensors` package accepts, its entries in any order.
fn random_header(stream: &mut Stream) -> (String, u64) {
    let mut offset = 0;
    let mut entries = Vec::new();
    for number in 0..stream.below(12) {
        let dtype = Dtype::ALL[stream.below(Dtype::ALL.len() as u64) as usize];
        let mut shape: Vec<u64> = (0..stream.below(4)).map(|_| stream.below(6)).collect();
        let values = |shape: &[u64]| shape.iter().product::<u64>();
        if !(values(&shape) * dtype.bits()).is_multiple_of(8) {
            shape.push(4);
        }
        let end = offset + values(&shape) * dtype.bits() / 8;
        let name = match stream.below(4) {
            0 => format!("ü\"\\ {number}"),
            _ => format!("model.layers.{number}.weight"),
        };
        entries.push((name, entry(dtype.name(), &shape, offset, end)));
        offset = end;
    }
    if stream.below(2) == 0 {
        entries.push(("__metadata__".to_owned(), json!({"format": "pt", "ä": ""})));
    }
    for last in (1..entries.len()).rev() {
        entries.swap(last, stream.below(last as u64 + 1) as usize);
    }
    let mut header = Value::Object(entries.into_iter().collect()).to_string();
    header.push_str(&" ".repeat(stream.below(9) as usize));
    (header, offset)
}

#[test]
fn what_the_safetensors_package_accepts_is_accepted_with_the_same_layout() {
    let mut stream = Stream::new(2026);
    for _ in 0..3000 {
        let (header, data_len) = random_header(&mut stream);
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data_len as usize, 0);
        let theirs = safetensors::SafeTensors::deserialize(&file).expect("a valid file");
        let ours = parse(&header, data_len).expect(&header);
        assert_eq!(ours.tensors.len(), theirs.len());
        let mut offset = 8 + header.len();
        for tensor in &ours.tensors {
            let view = theirs.tensor(&tensor.name).expect("the same names");
            assert_eq!(view.dtype().to_string(), tensor.dtype.name());
            assert!(
                view.shape()
                    .iter()
                    .map(|&n| n as u64)
                    .eq(tensor.shape.iter().copied())
            );
            assert_eq!(view.data().len() as u64, tensor.byte_len());
            if !view.data().is_empty() {
                assert_eq!(view.data().as_ptr(), file[offset..].as_ptr());
            }
            offset += tensor.byte_len() as usize;
        }
        assert_eq!(offset, file.len());
    }
}
