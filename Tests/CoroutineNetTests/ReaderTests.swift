import Dispatch
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// A reader that expectations, whose expressions are copied, may use.
private final class Reader: @unchecked Sendable {
  // Sound because the test that made it uses it alone.
  private var reader: BufferedReader

  init(_ connection: Connection, capacity: Int = 16_384) {
    reader = BufferedReader(connection, capacity: capacity)
  }

  func read(exactly count: Int) throws -> [UInt8] { try reader.read(exactly: count) }
  func read(until delimiter: UInt8, max: Int) throws -> [UInt8]? { try reader.read(until: delimiter, max: max) }
  func readLine(max: Int = 8_192) throws -> String? { try reader.readLine(max: max) }
  func readInteger<T: FixedWidthInteger>(_ type: T.Type) throws -> T { try reader.readInteger(type) }
  func readAll(max: Int) throws -> [UInt8] { try reader.readAll(max: max) }
}

@Suite("Buffered readers", .timeLimit(.minutes(10)))
struct ReaderTests {
  /// Calls `body` with a reader of a connection whose peer sends `bytes` in pieces of `piece`, and then the end.
  private func reading(
    _ bytes: some Sequence<UInt8> & Sendable,
    pieces piece: Int = .max,
    capacity: Int = 16_384,
    _ body: @escaping @Sendable (Reader) throws -> Void
  ) async throws {
    let bytes = Array(bytes)
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      let writer = co_launch {
        var rest = bytes[...]
        while !rest.isEmpty {
          try one.write(rest.prefix(piece))
          rest = rest.dropFirst(piece)
          if piece < .max { try co_yield() }
        }
        try one.shutdownWrite()
      }
      let reader = Reader(other, capacity: capacity)
      try body(reader)
      writer.cancel()
    }
  }

  @Test(arguments: [1, 2, 3, 7, Int.max], [1, 4, 16_384])
  func `lines end with LF or CRLF, however they arrive`(_ piece: Int, _ capacity: Int) async throws {
    try await reading("one\r\ntwo\n\n\r\nthr\ree\n".utf8, pieces: piece, capacity: capacity) {
      (reader: Reader) throws in
      var lines: [String] = []
      while let line = try reader.readLine() { lines.append(line) }
      #expect(lines == ["one", "two", "", "", "thr\ree"])
      #expect(try reader.readLine() == nil)
    }
  }

  @Test func `a line in the middle of which the stream ends is no line`() async throws {
    try await reading("whole\npart".utf8) { (reader: Reader) throws in
      #expect(try reader.readLine() == "whole")
      for _ in 0..<2 { #expect(throws: NetError.endOfStream) { try reader.readLine() } }
      #expect(try reader.read(exactly: 4) == Array("part".utf8))
      #expect(try reader.readLine() == nil)
    }
  }

  @Test func `a line may have as many bytes as its limit, and no more`() async throws {
    for end in ["\n", "\r\n"] {
      try await reading("12345\(end)123456\(end)".utf8) { (reader: Reader) throws in
        #expect(try reader.readLine(max: 5) == "12345")
        #expect(throws: NetError.tooLong) { try reader.readLine(max: 5) }
        #expect(try reader.readLine(max: 6) == "123456")
      }
    }
  }

  @Test func `a line without an end is refused before it fills the memory`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      let writer = co_launch { while true { try one.write([UInt8](repeating: 65, count: 10_000)) } }
      let reader = Reader(other)
      #expect(throws: NetError.tooLong) { try reader.readLine(max: 100_000) }
      other.close()
      #expect(throws: (any Error).self) { try writer.join() }
    }
  }

  @Test func `bytes that are no UTF-8 do not stop a reader`() async throws {
    try await reading([0xFF, 65, 10]) { (reader: Reader) throws in #expect(try reader.readLine() == "\u{FFFD}A") }
  }

  @Test func `any byte can be a delimiter, and max counts what is before it`() async throws {
    try await reading([1, 2, 0, 0, 3, 3, 3, 0]) { (reader: Reader) throws in
      #expect(try reader.read(until: 0, max: 2) == [1, 2])
      #expect(try reader.read(until: 0, max: 0) == [])
      #expect(throws: NetError.tooLong) { try reader.read(until: 0, max: 2) }
      #expect(try reader.read(until: 0, max: 3) == [3, 3, 3])
      #expect(try reader.read(until: 0, max: 3) == nil)
    }
  }

  @Test(arguments: [1, 3, Int.max])
  func `an exact read consumes nothing if there is too little`(_ piece: Int) async throws {
    try await reading((0..<100).map { UInt8($0) }, pieces: piece, capacity: 8) { (reader: Reader) throws in
      #expect(try reader.read(exactly: 40) == (0..<40).map { UInt8($0) })
      #expect(try reader.read(exactly: 0) == [])
      #expect(throws: NetError.endOfStream) { try reader.read(exactly: 61) }
      #expect(try reader.read(exactly: 60) == (40..<100).map { UInt8($0) })
      #expect(throws: NetError.endOfStream) { try reader.read(exactly: 1) }
    }
  }

  @Test func `integers come in the order of the network`() async throws {
    try await reading([1, 2, 3, 0xFF, 0xFE, 0, 0, 0, 1, 0, 0, 0, 0, 7], pieces: 3) { (reader: Reader) throws in
      #expect(try reader.readInteger(UInt8.self) == 1)
      #expect(try reader.readInteger(UInt16.self) == 0x0203)
      #expect(try reader.readInteger(Int16.self) == -2)
      #expect(try reader.readInteger(UInt64.self) == 0x1_0000_0000)
      #expect(throws: NetError.endOfStream) { try reader.readInteger(UInt16.self) }
      #expect(try reader.readInteger(UInt8.self) == 7)
    }
  }

  @Test func `everything is read up to a limit`() async throws {
    try await reading([UInt8](repeating: 5, count: 100_000), capacity: 100) { (reader: Reader) throws in
      #expect(throws: NetError.tooLong) { try reader.readAll(max: 99_999) }
      #expect(try reader.readAll(max: 100_000).count == 100_000)
      #expect(try reader.readAll(max: 0) == [])
    }
  }

  @Test func `a deadline consumes nothing`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      let reader = Reader(other)
      for byte in UInt8(0)..<10 {
        try one.write([byte])
        #expect(throws: TimeoutError.self) { try co_timeout(.milliseconds(2)) { try reader.read(exactly: 11) } }
      }
      try one.write([10, 11])
      #expect(try reader.read(exactly: 11) == Array(0...10))
      #expect(try reader.read(exactly: 1) == [11])
    }
  }

  @Test func `a reader that waits for its first byte holds no buffer`() async throws {
    // On one queue: the two coroutines then use the buffer on one thread at a time, in an order that is seen.
    try await co_launch(on: DispatchQueue(label: "reader")) {
      let (one, other) = try Connection.pair()
      // Sound because one coroutine uses it while the other waits, or looks at a word.
      nonisolated(unsafe) let buffer = ReadBuffer(capacity: 1_000)
      #expect(!buffer.hasMemory)
      let job = co_launch { try buffer.fill(from: other) }
      try other.untilAwaited(.reading)
      #expect(!buffer.hasMemory)
      try one.write([1, 2])
      #expect(try job.join())
      #expect(Array(buffer.bytes) == [1, 2])
      let second = co_launch { try buffer.fill(from: other) }
      try other.untilAwaited(.reading)
      #expect(buffer.hasMemory)
      try one.write([3])
      #expect(try second.join())
      #expect(buffer.take(3) == [1, 2, 3])
    }
    .value
  }
}
