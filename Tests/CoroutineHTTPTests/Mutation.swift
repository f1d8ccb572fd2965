#if HTTP
import Glibc

/// Numbers from a seed, for runs that can be repeated (SplitMix64).
struct SeededNumbers: RandomNumberGenerator {
  private var state: UInt64

  init(_ seed: UInt64) { state = seed }

  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var word = state
    word = (word ^ word >> 30) &* 0xBF58_476D_1CE4_E5B9
    word = (word ^ word >> 27) &* 0x94D0_49BB_1331_11EB
    return word ^ word >> 31
  }
}

/// A number from the environment, for `make fuzz-http` and `make soak-http`.
func setting(_ name: String, _ usual: Int) -> Int { getenv(name).flatMap { Int(String(cString: $0)) } ?? usual }

/// Requests that are nearly right: those of the variants, changed at random places.
struct Mutation {
  private let seeds: [[UInt8]]
  private static let pieces: [[UInt8]] =
    [
      "\r\n", "\n", "\r", "\0", " ", "\t", ":", ";", ",", "/", "?", "#", "\"", "0", "1", "9", "f", "-", "+", "\u{7f}",
      "\r\n\r\n", "\r\n ", "chunked", "close", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "Host: b\r\n",
      "Expect: 100-continue\r\n", "Upgrade: x\r\n", "Connection: upgrade\r\n", "HTTP/1.1", "HTTP/1.0", "GET ",
      "CONNECT a:1 ", "99999999999999999999", "ffffffffffffffff", "0\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ].map { Array($0.utf8) } + [[0x80], [0xff], [0x01]]

  init() {
    // Long ones would be mutated where nothing is decided.
    seeds = (VariantTests.good + VariantTests.bad).map { Array($0.request.utf8) }.filter { $0.count < 1_000 }
  }

  /// The next request, and what may follow it.
  func next(_ numbers: inout SeededNumbers) -> [UInt8] {
    var bytes = pick(seeds, &numbers)
    for _ in 0..<Int.random(in: 1...4, using: &numbers) {
      let start = Int.random(in: 0...bytes.count, using: &numbers)
      let end = min(bytes.count, start + Int.random(in: 0...8, using: &numbers))
      switch Int.random(in: 0..<7, using: &numbers) {
      case 0: bytes.insert(contentsOf: pick(Self.pieces, &numbers), at: start)
      case 1: bytes.replaceSubrange(start..<end, with: pick(Self.pieces, &numbers))
      case 2: bytes.removeSubrange(start..<end)
      case 3: bytes.insert(contentsOf: bytes[start..<end], at: start)
      case 4: if start < bytes.count { bytes[start] ^= 1 << UInt8.random(in: 0..<8, using: &numbers) }
      case 5: if start < bytes.count { bytes[start] = UInt8.random(in: 0...255, using: &numbers) }
      default:
        let other = pick(seeds, &numbers)
        bytes = Array(bytes[..<start]) + other[Int.random(in: 0...other.count, using: &numbers)...]
      }
    }
    return bytes
  }

  private func pick<Element>(_ all: [Element], _ numbers: inout SeededNumbers) -> Element {
    all[Int.random(in: 0..<all.count, using: &numbers)]
  }
}
#endif
