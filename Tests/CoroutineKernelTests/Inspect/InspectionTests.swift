import CCoroutineRuntime
import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// The two halves of the argument in Inspection.swift.
@Suite("How a dump retains the source of a wait", .timeLimit(.minutes(10)))
struct InspectionTests {
  /// Objects that a dump inspects, and that show when their deinit continues.
  static let kinds: [@Sendable (_ owned: Tracked) -> AnyObject] = [
    { owned in
      let channel = Channel<Tracked>(1)
      _ = channel.trySend(owned)
      return channel
    },
    { owned in Promise<Tracked>.value(owned) },
  ]

  @Test(arguments: 0..<2)
  func `an object is not freed while a dump is about to take a reference`(kind: Int) async throws {
    let trace = Trace()
    let ended = Gate()
    let isReleasing = Flag()
    try await onOwnThread {
      let held = Unmanaged.passRetained(Self.kinds[kind](Tracked("object", trace)))
      // As a dump does after it has read the address.
      Inspection.begin(held.toOpaque())
      // Between these two calls a dump only takes a reference, but this test allocates.
      cco_layer().pointee.lock_exemptions += 1
      startThread {
        isReleasing.raise()
        held.release()
        ended.open()
      }
      while !isReleasing.isRaised { sched_yield() }
      // Time enough for a deinit that does not wait.
      for _ in 0..<20 { sched_yield() }
      trace("retained")
      cco_layer().pointee.lock_exemptions -= 1
      Inspection.end()
    }
    try await onCoroutine { try ended.pass() }
    #expect(trace.all == ["retained", "released object"])
  }

  @Test func `an object that the coroutine no longer waits for is not touched`() async throws {
    try await onSerialQueue {
      var channel: Channel<Int>? = Channel<Int>()
      let job = co_launch { [channel] in _ = try channel?.receive() }
      try co_yield()
      let word = job.record.pointee.wait.load(ordering: .acquiring)
      let address = job.record.pointee.waitSource.load(ordering: .acquiring)
      #expect(word & 0xFF == 1)
      #expect(Inspection.source(of: job.record, word, at: address) === channel)
      channel?.close()
      channel = nil
      try job.join()
      // By now it is freed memory.
      #expect(Inspection.source(of: job.record, word, at: address) == nil)
    }
  }
}
