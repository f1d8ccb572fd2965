#if HTTP
import CLLHTTP
import Coroutine
import CoroutineNet
import HTTPTypes
import Testing

@testable import CoroutineHTTP

/// Mutated requests.
///
/// `make fuzz-http` runs ten million of them under AddressSanitizer; CO_SEED repeats a run.
@Suite("Mutated requests", .timeLimit(.minutes(60)))
struct FuzzTests {
  private static let count = setting("CO_HTTP_FUZZ", 20_000)
  private static let seed = UInt64(setting("CO_SEED", Int(UInt32.random(in: 0 ... .max))))

  // MARK: The parser

  /// All that a parser says of a head and its chunks.
  private struct Reading: Equatable {
    var state: UInt32 = 0
    var length: UInt32 = 0
    var fields: [[UInt8]] = []
    var facts: [UInt64] = []
    var body: [UInt8] = []
  }

  private static func read(_ bytes: [UInt8], _ message: UnsafeMutablePointer<chttp_message>, cuts: [Int]) -> Reading {
    chttp_reset(message)
    var reading = Reading()
    bytes.withUnsafeBytes { all in
      let start = all.bindMemory(to: CChar.self)
      var (parsed, state) = (0, CHTTP_MORE)
      for end in cuts + [bytes.count] where state == CHTTP_MORE && end > parsed {
        state = chttp_parse_head(message, start.baseAddress, parsed, end)
        parsed = end
      }
      reading.state = state.rawValue
      let head = message.pointee
      guard state == CHTTP_DONE else { return }
      reading.length = head.head_length
      reading.facts = [
        head.content_length, UInt64(head.target), UInt64(head.target_length), UInt64(head.minor_version),
        UInt64(head.keeps_alive), UInt64(head.is_chunked), UInt64(head.has_length), UInt64(head.is_upgrade),
      ]
      for index in 0..<Int(head.field_count) {
        let field = head.fields[index]
        // Outside of the head, this traps or is found by AddressSanitizer.
        reading.fields.append(Array(all[Int(field.name)..<Int(field.name + field.name_length)]))
        reading.fields.append(Array(all[Int(field.value)..<Int(field.value + field.value_length)]))
      }
      if head.is_chunked != 0 { readChunks(all, Int(head.head_length), message, cuts, &reading) }
    }
    return reading
  }

  private static func readChunks(
    _ bytes: UnsafeRawBufferPointer,
    _ start: Int,
    _ message: UnsafeMutablePointer<chttp_message>,
    _ cuts: [Int],
    _ reading: inout Reading
  ) {
    var (position, state) = (start, CHTTP_MORE)
    for end in cuts + [bytes.count] {
      while state == CHTTP_MORE, position < end {
        // An allocation of its own: what is written behind it is found by AddressSanitizer.
        var into = [CChar](repeating: 0, count: end - position)
        var (copied, consumed) = (0, 0)
        let from = bytes.baseAddress?.advanced(by: position).assumingMemoryBound(to: CChar.self)
        state = chttp_parse_chunks(message, from, end - position, &into, 4_096, &copied, &consumed)
        reading.body += into[..<copied].map { UInt8(bitPattern: $0) }
        position += consumed
        if consumed == 0 { break }
      }
    }
    reading.facts.append(UInt64(state.rawValue))
    // After an error, where the parser has stopped depends on the cuts.
    if state == CHTTP_BAD {
      reading.body = []
    } else {
      reading.facts += [UInt64(position), UInt64(message.pointee.field_count)]
    }
  }

  @Test func `the parser reads a request in one way, however it is cut`() throws {
    let mutation = Mutation()
    var numbers = SeededNumbers(Self.seed)
    let message = try #require(chttp_create(0))
    defer { chttp_destroy(message) }
    for round in 0..<Self.count {
      let bytes = mutation.next(&numbers)
      let whole = Self.read(bytes, message, cuts: [])
      let cuts = (0..<Int.random(in: 1...6, using: &numbers))
        .map { _ in Int.random(in: 0...bytes.count, using: &numbers) }.sorted()
      let cut = Self.read(bytes, message, cuts: cuts)
      // A head is refused as well if bytes behind it that came with it are malformed.
      let isSame =
        whole == cut
        || whole.state == CHTTP_BAD.rawValue && cut.state == CHTTP_DONE.rawValue
          && Self.read(Array(bytes[Int(cut.length)...]), message, cuts: []).state == CHTTP_BAD.rawValue
      guard isSame else {
        Issue.record("seed \(Self.seed), round \(round), cuts \(cuts): \(bytes)\n\(whole)\n\(cut)")
        return
      }
    }
  }

  // MARK: The server

  /// What a server answers to bytes, and what its handler has read.
  private struct Outcome: Equatable {
    var statuses: [Int] = []
    /// Which of two errors is found first, an unknown method or a malformed line, depends on the cuts.
    var isRefused = false
    var seen: [String] = []
  }

  private static func serve(_ bytes: [UInt8], cuts: [Int]) throws -> (Outcome, errors: [String]) {
    let seen = Locked<[String]>([])
    let service = HTTPService(.init()) { request, response in
      let body = try request.collect(upTo: 4_096)
      seen.withLock {
        $0.append("\(request.method) \(request.path) \(request.query ?? "-") \(String(decoding: body, as: UTF8.self))")
      }
      try response.send("ok")
    }
    let (near, far) = try Connection.pair()
    let server = co_launch {
      defer { far.close() }
      try HTTPConnection.serve(far, service)
    }
    let writer = co_launch {
      var start = 0
      for end in cuts + [bytes.count] {
        if end > start { try near.write(bytes[start..<end]) }
        start = end
        // The server reads what is there, so that it sees the pieces.
        try co_yield()
      }
      try near.shutdownWrite()
    }
    let answer = try co_timeout(.seconds(120)) { try near.rest() }
    writer.cancel()
    try? writer.join()
    near.close()
    var errors: [String] = []
    do { try server.join() } catch { errors.append("\(error)") }
    let all = statuses(answer)
    let outcome = Outcome(
      statuses: all.filter { $0 < 400 },
      isRefused: (all.last ?? 0) >= 400,
      seen: seen.current
    )
    if all.dropLast().contains(where: { $0 >= 400 }) { errors.append("answers behind a refusal: \(all)") }
    return (outcome, errors)
  }

  @Test func `empty lines without a request have no answer, however they are cut`() async throws {
    try await onCoroutine {
      // Often: the server may read two pieces at once.
      for text in [String](repeating: "\r\n", count: 3_000) + ["\r\n\r\n"] {
        for cuts in [[], [1], [1, 2, 3]] where (cuts.last ?? 0) < text.utf8.count {
          let (outcome, errors) = try Self.serve(Array(text.utf8), cuts: cuts)
          #expect(outcome == Outcome() && errors.isEmpty, "\(text.debugDescription), cut at \(cuts)")
        }
      }
    }
  }

  @Test func `the server gives one answer to a request, however it is cut, and none behind a refusal`() async throws {
    try await onCoroutine {
      let mutation = Mutation()
      var numbers = SeededNumbers(Self.seed)
      for round in 0..<max(1, Self.count / 40) {
        let bytes = mutation.next(&numbers)
        let cuts = (0..<Int.random(in: 1...6, using: &numbers))
          .map { _ in Int.random(in: 0...bytes.count, using: &numbers) }.sorted()
        let (whole, errors) = try Self.serve(bytes, cuts: [])
        let (cut, moreErrors) = try Self.serve(bytes, cuts: cuts)
        // Requests that were answered with success are those that the handler has read.
        let isRight =
          whole == cut && errors.isEmpty && moreErrors.isEmpty
          && whole.statuses.count { $0 == 200 } == whole.seen.count
        guard isRight else {
          let text = String(decoding: bytes, as: UTF8.self).debugDescription
          Issue.record(
            "seed \(Self.seed), round \(round), cuts \(cuts): \(text)\n\(whole)\n\(cut) \(errors) \(moreErrors)"
          )
          return
        }
      }
    }
  }
}
#endif
