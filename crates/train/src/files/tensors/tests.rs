//! Headers that lie, and files that another implementation wrote or reads.

use super::super::{TensorSpec, TensorWriter};
use super::*;
use crate::scratch::Scratch;
use safetensors::SafeTensors;

fn spec(name: &str, dtype: Dtype, shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, shape: shape.to_vec() }
}

/// A file of two tensors, six and two numbers.
fn small(folder: &Scratch) -> PathBuf {
    let path = folder.path().join("model.safetensors");
    let specs =
        vec![spec("half", Dtype::BF16, &[2]), spec("b", Dtype::F32, &[2, 3]), spec("a", Dtype::F32, &[0])];
    let mut writer = TensorWriter::create(&path, specs).unwrap();
    let order: Vec<&str> = writer.tensors().iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(order, ["a", "b", "half"]);
    writer.write(&[1.0, 2.0]).unwrap();
    writer.write(&[3.0, 4.0, 5.0, f32::MIN_POSITIVE / 2.0]).unwrap();
    writer.write(&[-0.5, 1.003]).unwrap();
    let checksum = writer.finish().unwrap();
    assert_eq!(checksum, super::super::Checksum::of(&path).unwrap());
    path
}

#[test]
fn what_is_written_is_read_here_and_by_the_formats_own_library() {
    let folder = Scratch::new();
    let path = small(&folder);
    let file = TensorFile::open(&path).unwrap();
    let mut middle = vec![0.0; 3];
    file.read("b", 2, &mut middle).unwrap();
    assert_eq!(middle, [3.0, 4.0, 5.0]);
    let mut half = vec![0.0; 2];
    file.read("half", 0, &mut half).unwrap();
    assert_eq!(half, [-0.5, 1.0], "1.003 is nearest to 1 among numbers with eight bits");
    assert_eq!(file.metadata()["format"], "pt");

    let bytes = std::fs::read(&path).unwrap();
    let theirs = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.tensor("b").unwrap().shape(), [2, 3]);
    assert_eq!(theirs.tensor("b").unwrap().data()[..8], [0, 0, 128, 63, 0, 0, 0, 64]);
    assert!(theirs.tensor("a").unwrap().data().is_empty());
}

#[test]
fn numbers_of_every_float_type_arrive_across_pieces() {
    let folder = Scratch::new();
    let numbers: Vec<f32> = (0..20_000).map(|i| (i % 251) as f32 - 125.0).collect();
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
        let path = folder.path().join("numbers.safetensors");
        let mut writer = TensorWriter::create(&path, vec![spec("x", dtype, &[100, 200])]).unwrap();
        numbers.chunks(777).for_each(|piece| writer.write(piece).unwrap());
        writer.finish().unwrap();
        let mut read = vec![0.0; 19_999];
        TensorFile::open(&path).unwrap().read("x", 1, &mut read).unwrap();
        assert_eq!(read, numbers[1..], "{dtype}");
    }
}

#[test]
fn integers_are_not_weights_and_nothing_is_read_past_the_end() {
    let folder = Scratch::new();
    let path = folder.path().join("i.safetensors");
    let mut writer = TensorWriter::create(&path, vec![spec("ids", Dtype::I64, &[1])]).unwrap();
    writer.write_bytes(&[0; 8]).unwrap();
    writer.finish().unwrap();
    let file = TensorFile::open(&path).unwrap();
    let fault = file.read("ids", 0, &mut [0.0]).unwrap_err().to_string();
    assert!(fault.ends_with("holds `ids` as I64; weights are read from F32, BF16 or F16"), "{fault}");
    assert!(file.read_bytes("ids", 4, &mut [0; 5]).is_err());
    assert!(file.read("nothing", 0, &mut []).unwrap_err().to_string().ends_with("holds no tensor `nothing`"));
}

#[test]
fn a_file_cut_off_anywhere_is_refused_and_so_is_one_with_a_tail() {
    let folder = Scratch::new();
    let whole = std::fs::read(small(&folder)).unwrap();
    for length in 0..whole.len() {
        let fault = TensorFile::open(&folder.write("cut", &whole[..length])).unwrap_err().to_string();
        assert!(fault.ends_with("fetch it again") || fault.ends_with("fetch the file again"), "{fault}");
    }
    let fault = TensorFile::open(&folder.write("cut", &whole[..whole.len() - 1])).unwrap_err().to_string();
    assert!(
        fault.contains("is cut off: `half` would end at byte 28 of the data, of which there are 27"),
        "{fault}"
    );
    let fault = TensorFile::open(&folder.write("long", [&whole[..], &[0; 3]].concat())).unwrap_err();
    assert!(fault.to_string().contains("has 3 bytes at its end that belong to no tensor"), "{fault}");
}

#[test]
fn a_header_that_contradicts_itself_is_refused_by_the_name_of_the_tensor() {
    let folder = Scratch::new();
    let refused = |header: &str, data: usize| {
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat();
        TensorFile::open(&folder.write("bad", bytes)).unwrap_err().to_string()
    };
    let x = |dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#""x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let y = r#""y":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}"#;
    let cases = [
        (
            format!("{{{}}}", x("F32", "[2]", 0, 4)),
            4,
            "`x` lies at bytes 0 to 4, which is not the size of F32 [2]",
        ),
        (format!("{{{}}}", x("F32", "[2]", 8, 0)), 8, "`x` lies at bytes 8 to 0"),
        (format!("{{{}}}", x("F32", "[4294967296,4294967296,4294967296]", 0, 8)), 8, "is not the size of"),
        (
            format!("{{{}}}", x("F9", "[2]", 0, 8)),
            8,
            "describes `x` in a way nobody knows (unknown variant `F9`",
        ),
        (format!("{{{}}}", x("F32", "[-2]", 0, 8)), 8, "describes `x` in a way nobody knows"),
        (format!("{{{},{y}}}", x("F32", "[1]", 0, 4)), 12, "has a gap before the data of `y`"),
        (format!("{{{},{y}}}", x("F32", "[3]", 0, 12)), 12, "has an overlap before the data of `y`"),
        ("[1]".into(), 0, "has a header that is no JSON object"),
        ("{".into(), 0, "has a header that is no JSON object"),
        (r#"{"__metadata__":{"step":5}}"#.into(), 0, "has metadata that is not text"),
    ];
    for (header, data, expected) in cases {
        let fault = refused(&header, data);
        assert!(fault.contains(expected) && fault.contains("bad"), "{header}: {fault}");
    }
    let fault = TensorFile::open(&folder.write("picture", [0xff; 64])).unwrap_err().to_string();
    assert!(fault.contains("does not begin like a safetensors file"), "{fault}");
    let fault = TensorFile::open(&folder.path().join("absent")).unwrap_err().to_string();
    assert!(fault.contains("absent cannot be read (it does not exist)"), "{fault}");
}

#[test]
fn a_full_disk_is_said_so() {
    let mut writer =
        TensorWriter::create(Path::new("/dev/full"), vec![spec("x", Dtype::F32, &[1 << 20])]).unwrap();
    let fault = (0..1024).find_map(|_| writer.write(&[0.0; 1024]).err()).unwrap().to_string();
    assert!(fault.contains("/dev/full cannot be written (the disk is full)"), "{fault}");
}
