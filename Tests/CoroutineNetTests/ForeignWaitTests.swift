import Dispatch
import Synchronization
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// The kernel has one registration for a number in an epoll instance.
///
/// That of the runtime stays, because others wait for a duplicate.
@Suite("co_untilReadable for descriptors that the runtime owns", .timeLimit(.minutes(10)))
struct ForeignWaitTests {
  /// Where the coroutines run: on one worker, or on a queue.
  ///
  /// All of them choose the same poller.
  private static let places: [DispatchQueue?] = {
    let pool = Unmanaged.passRetained(WorkerPool(count: 1, label: "coroutine.tests.foreign")).takeUnretainedValue()
    return [pool.workers[0].currentQueue, DispatchQueue(label: "foreign waits")]
  }()

  /// Waits for the connection's descriptor as for one of others.
  @Sendable private static func waitAsOthers(_ connection: Connection) throws {
    try connection.withUnsafeDescriptor { try co_untilReadable($0, assumingNotReady: true) }
  }

  /// Yields until the waiter is parked.
  @Sendable private static func untilParked(_ waiter: Job<Void>) throws {
    let kind = WaitKind.readable.rawValue
    while !waiter.record.seemsWaiting || waiter.record.pointee.waitKind.load(ordering: .relaxed) != kind {
      try co_yield()
    }
  }

  /// Runs `body` on a worker, then on a queue, with a pair of connections.
  private func onEach(_ body: @escaping @Sendable (Connection, Connection) throws -> Void) async throws {
    for queue in Self.places {
      try await co_launch(on: queue) {
        let (one, other) = try Connection.pair()
        try body(one, other)
      }
      .value
    }
  }

  @Test func `a read that waits first and a later co_untilReadable are both woken, round after round`() async throws {
    try await onEach { one, other in
      for round in 1...20 {
        let reader = co_launch { try one.read(upTo: 1) }
        try one.untilAwaited(.reading)
        let waiter = co_launch { try Self.waitAsOthers(one) }
        try Self.untilParked(waiter)
        try other.write([UInt8(round)])
        #expect(try reader.join() == [UInt8(round)])
        // The reader may have taken the byte before the other one looked.
        try other.write([0])
        try waiter.join()
        #expect(try one.read(upTo: 1) == [0])
      }
    }
  }

  @Test func `a co_untilReadable that waits first is woken, although a read registers the descriptor`() async throws {
    try await onEach { one, other in
      let waiter = co_launch { try Self.waitAsOthers(one) }
      try Self.untilParked(waiter)
      let reader = co_launch { try one.read(upTo: 1) }
      try one.untilAwaited(.reading)
      try other.write([1])
      #expect(try reader.join() == [1])
      try other.write([2])
      try waiter.join()
      #expect(try one.read(upTo: 1) == [2])
    }
  }

  @Test func `a read is woken, although a co_untilReadable has used the descriptor before`() async throws {
    try await onEach { one, other in
      let waiter = co_launch { try Self.waitAsOthers(one) }
      try Self.untilParked(waiter)
      try other.write([1])
      try waiter.join()
      #expect(try one.read(upTo: 1) == [1])
      let reader = co_launch { try one.read(upTo: 1) }
      try one.untilAwaited(.reading)
      try other.write([2])
      #expect(try reader.join() == [2])
    }
  }

  @Test func `a read and a co_untilReadable in the pollers of different threads are both woken`() async throws {
    for (reads, waits) in [(0, 1), (1, 0)] {
      for readsFirst in [true, false] {
        try await onCoroutine {
          let (one, other) = try Connection.pair()
          func read() throws -> Job<[UInt8]> {
            let job = co_launch(on: Self.places[reads]) { try one.read(upTo: 1) }
            try one.untilAwaited(.reading)
            return job
          }
          let early = readsFirst ? try read() : nil
          let waiter = co_launch(on: Self.places[waits]) { try Self.waitAsOthers(one) }
          try Self.untilParked(waiter)
          let reader = try early ?? read()
          try other.write([1])
          #expect(try reader.join() == [1])
          // The reader may have taken the byte before the other one looked.
          try other.write([2])
          try waiter.join()
          #expect(try one.read(upTo: 1) == [2])
        }
      }
    }
  }
}
