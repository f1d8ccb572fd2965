import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// What a reader holds: to look at it, to take a part, to wait for more, to hand it over.
@Suite("The bytes that a reader holds", .timeLimit(.minutes(10)))
struct BufferedBytesTests {
  /// Suspends until `count` bytes have arrived at a connection.
  private func untilArrived(_ count: Int, at connection: Connection) throws {
    try until {
      connection.withUnsafeDescriptor { number in
        var room = [UInt8](repeating: 0, count: count)
        return recv(number, &room, count, Int32(MSG_PEEK | MSG_DONTWAIT)) == count
      }
    }
  }

  @Test func `a reader says how many bytes it holds, shows them, and gives up those that it is told to`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      var reader = BufferedReader(other)
      let atFirst = reader.bufferedCount
      #expect(atFirst == 0)
      reader.withBuffered { #expect($0.isEmpty) }
      reader.consume(0)
      try one.write("head:body".utf8)
      let hasMore = try reader.fill()
      let held = reader.bufferedCount
      #expect(hasMore && held == 9)
      // Looking takes nothing.
      for _ in 0..<2 { reader.withBuffered { #expect(Array($0) == Array("head:body".utf8)) } }
      reader.consume(5)
      reader.withBuffered { #expect(Array($0) == Array("body".utf8)) }
      let rest = try reader.read(exactly: 4)
      #expect(rest == Array("body".utf8))
      let atLast = reader.bufferedCount
      #expect(atLast == 0)
    }
  }

  @Test func `withBuffered passes the result and the error of its body on`() async throws {
    try await onCoroutine {
      let (_, other) = try Connection.pair()
      let reader = BufferedReader(other)
      let result = reader.withBuffered { _ in 7 }
      #expect(result == 7)
      let thrown = failure { try reader.withBuffered { _ in throw NetError.tooLong } }
      #expect(thrown as? NetError == .tooLong)
    }
  }

  @Test func `a fill waits for one byte more than there are, also when the reader holds some`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      var reader = BufferedReader(other, capacity: 4)
      var seen: [Int] = []
      for byte in UInt8(0)..<10 {
        let writer = co_launch {
          try other.untilAwaited(.reading)
          try one.write([byte])
        }
        let hasMore = try reader.fill()
        #expect(hasMore)
        seen.append(reader.bufferedCount)
        try writer.join()
      }
      #expect(seen == Array(1...10))
      try one.shutdownWrite()
      for _ in 0..<2 {
        let hasMore = try reader.fill()
        #expect(!hasMore)
      }
      let all = try reader.read(exactly: 10)
      #expect(all == Array(0..<10))
    }
  }

  @Test func `a read of what is there takes the held bytes first, and else those of one read`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      var reader = BufferedReader(other)
      try one.write("line\nabcdef".utf8)
      try untilArrived(11, at: other)
      let line = try reader.readLine()
      #expect(line == "line")
      let none = try reader.read(upTo: 0)
      #expect(none.isEmpty)
      let first = try reader.read(upTo: 4)
      let second = try reader.read(upTo: 100)
      #expect(first == Array("abcd".utf8) && second == Array("ef".utf8))
      // Without a held byte: from the connection, by way of the buffer or directly.
      for count in [3, 16_384, 1 << 20] {
        try one.write("xyz".utf8)
        let read = try reader.read(upTo: count)
        #expect(read == Array("xyz".utf8))
      }
      try one.shutdownWrite()
      for count in [3, 1 << 20, 1 << 20] {
        let end = try reader.read(upTo: count)
        #expect(end.isEmpty)
      }
    }
  }

  @Test func `a child coroutine takes a connection over with the bytes after the head`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      try one.write("UPGRADE\nfirst bytes".utf8)
      try untilArrived(19, at: other)
      var reader = BufferedReader(other)
      let head = try reader.readLine()
      #expect(head == "UPGRADE")
      let rest = reader.takeBuffered()
      #expect(rest == Array("first bytes".utf8))
      let child = co_launch {
        var own = BufferedReader(other, startingWith: rest, capacity: 4)
        return try own.readAll(max: 100)
      }
      try one.write(", and more".utf8)
      try one.shutdownWrite()
      #expect(try child.join() == Array("first bytes, and more".utf8))
    }
  }

  @Test func `a reader that holds nothing hands nothing over`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      let rest = BufferedReader(other).takeBuffered()
      #expect(rest.isEmpty)
      try one.write([1])
      var next = BufferedReader(other, startingWith: rest)
      let first = try next.read(upTo: 10)
      #expect(first == [1])
    }
  }

  @Test func `the case of a reader is ready by the bytes that it holds, that of its connection is not`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      var reader = BufferedReader(other)
      try one.write("a\nb\n".utf8)
      try untilArrived(4, at: other)
      let first = try reader.readLine()
      #expect(first == "a")
      // Nothing is left in the system, so only the reader's own case can be chosen.
      let ofConnection = try co_select {
        other.onReadable { true }
          .otherwise { false }
      }
      let ofReader = try co_select {
        reader.onReadable { true }
          .otherwise { false }
      }
      #expect(!ofConnection && ofReader)
      let second = try reader.readLine()
      #expect(second == "b")
      let afterwards = try co_select {
        reader.onReadable { true }
          .otherwise { false }
      }
      #expect(!afterwards)
      try one.write([3])
      try co_select { reader.onReadable {} }
      let third = try reader.read(upTo: 1)
      #expect(third == [3])
    }
  }

  @Test func `of two ready cases that of a reader with bytes is chosen as often as the other`() async throws {
    try await onCoroutine {
      let (_, other) = try Connection.pair()
      let reader = BufferedReader(other, startingWith: [1])
      let ready = Promise.value(())
      var count = 0
      for _ in 0..<400 {
        count += try co_select {
          reader.onReadable { 1 }
          ready.onAwait { _ in 0 }
        }
      }
      // 400 fair throws of a coin lie outside of this less than once in a million million runs.
      #expect((130...270).contains(count))
    }
  }

  @Test func `a reader that is told to consume more than it holds ends the process`() async {
    for count in [-1, 3] {
      await #expect(processExitsWith: .failure) { [count = count as Int] in
        await inCoroutine {
          let (_, other) = try Connection.pair()
          var reader = BufferedReader(other, startingWith: [1, 2])
          reader.consume(count)
        }
      }
    }
  }

  // MARK: The wait between two messages

  @Test func `an idle handler ends at once when its scope is told to stop, one in a message goes on`() async throws {
    try await onCoroutine {
      let (idle, idleOther) = try Connection.pair()
      let (busy, busyOther) = try Connection.pair()
      let ends = Locked<[String]>([])
      try co_scope { scope in
        for (name, connection) in [("idle", idleOther), ("busy", busyOther)] {
          scope.launch {
            var reader = BufferedReader(connection)
            while try reader.waitForMessage() { _ = try reader.readLine() }
            ends.withLock { $0.append(name) }
          }
        }
        try busy.write("the beginning of".utf8)
        try idleOther.untilAwaited(.reading)
        try until { !Socket.isReadable(busyOther.socket.number) && busyOther.socket.isAwaited(.reading) }
        scope.launch {
          try until { ends.current == ["idle"] }
          try busy.write(" a message\n".utf8)
        }
        scope.stop(within: .seconds(100))
      }
      #expect(ends.current == ["idle", "busy"])
      idle.close()
    }
  }

  @Test func `a message that arrived before the stop is read, the end of a stream is one`() async throws {
    try await onCoroutine {
      let (one, other) = try Connection.pair()
      try co_scope { scope in
        scope.launch {
          try until { co_isStopping }
          var reader = BufferedReader(other)
          let hasMessage = try reader.waitForMessage()
          let message = try reader.readLine()
          #expect(hasMessage && message == "x")
          let hasAnother = try reader.waitForMessage()
          try one.shutdownWrite()
          let hasOneAfterTheEnd = try reader.waitForMessage()
          #expect(!hasAnother && !hasOneAfterTheEnd)
        }
        try one.write("x\n".utf8)
        scope.stop(within: .seconds(100))
      }
    }
  }
}
