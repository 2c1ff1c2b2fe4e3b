//! What must hold for every stream a server may send: any split of the same bytes is the same stream. The replay test
//! and the fuzz target share it.

use b70_client::{
    Api, Limits, RawBytes, ResponseDecoder, ResponseHead, SentRequest, SseItem, SseParser, StreamEvent, StreamReader,
};

/// The first four bytes choose where the rest is cut.
pub(crate) fn check(bytes: &[u8]) {
    let (seed, stream) = bytes.split_at(bytes.len().min(4));
    let seed = seed.iter().fold(0_u64, |seed, byte| seed << 8 | u64::from(*byte));
    let tight = Limits { line: 64, event: 96, head: 256, headers: 4, body: 512, stream: 2048, ..Limits::default() };
    for limits in [Limits::default(), tight] {
        events(stream, seed, &limits);
        decoded(stream, seed, &limits);
        for api in [Api::Chat, Api::Completions, Api::Native] {
            record(api, stream, seed, &limits);
        }
        let head: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        record(Api::Chat, &[head, stream].concat(), seed, &limits);
        record(Api::Native, &[head, stream].concat(), seed, &limits);
    }
}

/// The whole, single bytes, and pieces of a few bytes each.
fn splits(bytes: &[u8], seed: u64) -> [Vec<&[u8]>; 3] {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let take = usize::try_from((state >> 33) % 24).unwrap_or(0).min(rest.len());
        let (piece, after) = rest.split_at(take);
        // An empty read is a read, too.
        pieces.push(piece);
        rest = after;
    }
    [vec![bytes], bytes.chunks(1).collect(), pieces]
}

fn same<T: PartialEq + std::fmt::Debug>(mut outcomes: impl Iterator<Item = T>) -> T {
    let whole = outcomes.next().expect("the whole is the first");
    for split in outcomes {
        assert_eq!(whole, split, "a split changes nothing");
    }
    whole
}

fn events(bytes: &[u8], seed: u64, limits: &Limits) {
    let parse = |pieces: &Vec<&[u8]>| {
        let (mut parser, mut items) = (SseParser::new(limits), Vec::new());
        let failed = pieces.iter().find_map(|piece| parser.push(piece, &mut items).err().map(|kind| kind.code()));
        (items, failed, parser.has_pending())
    };
    let (items, failed, pending) = same(splits(bytes, seed).iter().map(parse));
    assert!(failed.is_none() || pending, "a failed parser never claims to be at an end");
    for item in &items {
        if let SseItem::Event { event, data } = item {
            // A byte that is not UTF-8 becomes one of three.
            assert!(data.len() <= 3 * limits.event && event.len() <= 3 * limits.line);
            assert!(!event.contains(['\n', '\r']));
        }
    }
    let colons = bytes.iter().filter(|byte| **byte == b':').count();
    let data = bytes.windows(4).filter(|window| window == b"data").count();
    assert!(items.len() <= colons + data, "an item needs a comment or a data line");
}

fn decoded(bytes: &[u8], seed: u64, limits: &Limits) {
    type Decoded = (Option<ResponseHead>, Vec<u8>, bool, Option<&'static str>);
    let decode = |pieces: &Vec<&[u8]>| -> Decoded {
        let (mut decoder, mut body) = (ResponseDecoder::new(limits, limits.body), Vec::new());
        let failed = pieces.iter().find_map(|piece| decoder.push(piece, &mut body).err().map(|kind| kind.code()));
        (decoder.head().cloned(), body, decoder.is_complete(), failed)
    };
    let (head, body, complete, failed) = same(splits(bytes, seed).iter().map(decode));
    assert!(body.len() <= limits.body.min(bytes.len()), "nothing is made up");
    assert!(!(complete && failed.is_some()));
    assert!(head.is_some() || (body.is_empty() && !complete));
    if let Some(head) = head {
        assert!((100..1000).contains(&head.status) && head.headers.len() <= limits.headers);
    }
}

fn record(api: Api, bytes: &[u8], seed: u64, limits: &Limits) {
    let request = || SentRequest { api, path: String::new(), body: serde_json::Value::Null, request_id: None };
    let read = |pieces: &Vec<&[u8]>| {
        let mut raw = RawBytes::default();
        for (index, piece) in pieces.iter().enumerate() {
            raw.push(f64::from(u32::try_from(index).expect("short inputs")), piece);
        }
        let (record, result) = StreamReader::replay(request(), &raw, limits);
        assert!(record.text_offsets().windows(2).all(|pair| pair[0] <= pair[1]), "offsets never go back");
        let untimed = |event: &StreamEvent| StreamEvent { offset_s: 0.0, ..event.clone() };
        let events: Vec<StreamEvent> = record.events.iter().map(untimed).collect();
        let joined: String = events.iter().map(|event| event.content.as_str()).collect();
        assert_eq!(joined, record.text, "the text is that of the events");
        let failed = result.err().map(|kind| kind.code());
        (events, record.text, record.reasoning, record.finish_reasons, record.status, record.done, failed)
    };
    let (.., done, failed) = same(splits(bytes, seed).iter().map(read));
    assert!(done || failed.is_some() || bytes.len() > 15, "a complete answer has at least a head");
}
