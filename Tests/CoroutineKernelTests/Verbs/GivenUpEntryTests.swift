import Dispatch
import Glibc
import Testing

@testable import Coroutine

/// The job in the entry of a switch (SwitchEntry.swift): HELD, USED by the destination's drain, or GIVEN UP.
@Suite("An entry of co_switch that was given up", .timeLimit(.minutes(5)))
struct GivenUpEntryTests {
  /// An entry that waits in another queue, as one of co_isolated does.
  ///
  /// The drain calls `mayArrive` while it has taken the job.
  private final class WaitingEntry: SwitchEntry, @unchecked Sendable {
    // Sound because everything is constant.
    let whileUsed: @Sendable () -> Void
    let looks: Trace

    init(_ job: JobRef, to destination: Scheduler, _ looks: Trace, _ whileUsed: @escaping @Sendable () -> Void) {
      (self.looks, self.whileUsed) = (looks, whileUsed)
      super.init(job, to: destination)
    }

    override func mayArrive(at scheduler: Scheduler) -> Bool {
      looks("look")
      whileUsed()
      return false
    }
    override func wasDropped(at scheduler: Scheduler) { looks("dropped") }
  }

  /// Launches a coroutine that switches to `away` with such an entry, and returns a result that says its release.
  private func giveUp(
    to away: DispatchQueue,
    _ kept: Locked<SwitchEntry?>,
    _ looks: Trace,
    _ released: @escaping @Sendable () -> Void,
    whileUsed: @escaping @Sendable () -> Void
  ) -> Job<Tracked> {
    co_launch(on: taggedQueue("home")) {
      let (carrier, job) = try Carrier.requireJob()
      let entry = WaitingEntry(job, to: QueueHost.scheduler(for: away), looks, whileUsed)
      kept.current = entry
      #expect(outcome { try Carrier.switchOver(carrier, entry, holding: away) } == "CancellationError")
      return Tracked(released)
    }
  }

  @Test func `keeps neither the job nor its result if it is given up while the drain has the job`() async throws {
    let (away, looks, released) = (taggedQueue("away"), Trace(), Gate())
    let (kept, isUsed, hasEnded) = (Locked<SwitchEntry?>(nil), Gate(), Flag())
    do {
      let job = giveUp(
        to: away,
        kept,
        looks,
        { released.open() },
        whileUsed: {
          isUsed.open()
          while !hasEnded.isRaised { sched_yield() }
        }
      )
      try await isUsed.value
      job.cancel()
      try await job.value.use()
      hasEnded.raise()
    }
    // The test still has the entry, which would keep the job.
    try await released.value
    #expect(kept.current?.isCancelled == true)
    // As the other queue does, which has the entry's reference.
    kept.current?.send()
    while looks.count < 2 { await Task.yield() }
    #expect(looks.all == ["look", "dropped"])
    kept.current = nil
  }
}
