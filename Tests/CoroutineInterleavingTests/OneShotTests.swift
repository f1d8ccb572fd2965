import Synchronization
import Testing

// Wait/OneShot.swift: an outcome against another one, against the coroutine that is about to wait for it, and against
// the coroutine's cancellation.

extension InterleavingTests {
  @Suite struct OneShotTests {
    @Test func `of two outcomes and a cancellation one ends the wait`() {
      let found = Explorer.explore(Self.race)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a cancellation by the code that runs before the wait is seen, unless an outcome is there`() {
      let found = Explorer.explore(Self.cancelledBefore)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a cell to the end gets its outcome, whenever its coroutine is cancelled`() {
      let found = Explorer.explore(Self.toEnd)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a body begins and the coroutine gets its outcome, or the coroutine is cancelled and none begins`() {
      let found = Explorer.explore(Self.held)
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [
      Fault.torn("claim(_:_:)"),  // the outcome and the cancellation both end the wait
      .unlocked("bring(_:)"),  // settles while the coroutine parks, and wakes nobody
      .unlocked("wait(_:_:for:onCancel:link:)"),  // reads an outcome that is not complete
    ])
    func `an outcome is lost, or comes twice, without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault, Self.race).failure != nil)
    }

    @Test func `a coroutine waits for ever if it does not look at the flags`() {
      let fault = Fault.reads(0, in: "wait(_:_:for:onCancel:link:)")
      #expect(Explorer.explore(with: fault, Self.cancelledBefore).failure != nil)
    }

    @Test func `a body runs in a frame that has gone, unless it begins under the lock`() {
      #expect(Explorer.explore(with: .unlocked("bringByBody(_:)"), Self.held).failure != nil)
    }

    // MARK: Models

    /// A coroutine that waits once, and what brings its outcome or cancels it.
    private final class World {
      let run: Explorer
      let scheduler = Scheduler()
      let job: AnyJob
      let lock = SpinLock()
      let one = OneShotRef.allocate(capacity: 1)
      /// Stored under the lock; zero is no outcome.
      let outcome = Atomic<Int>(0)
      var counted: [Int] = []
      var received: [Int] = []
      var bodies = 0

      init(_ run: Explorer, toEnd: Bool = false, isCancelled: Bool = false) {
        self.run = run
        job = AnyJob(on: scheduler)
        job.isThread = true
        one.initialize(to: OneShot(job.record, toEnd: toEnd))
        run.thread("job") { [unowned self] in
          Carrier.enter(scheduler) { carrier in
            carrier.pointee.job = job.record
            if isCancelled { job.record.pointee.flags.bitwiseOr(JobFlags.cancelled, ordering: .acquiringAndReleasing) }
            do {
              try one.wait(.callback, lock, onCancel: {})
              received.append(outcome.load(ordering: .relaxed))
            } catch {
              run.require(!toEnd, "the coroutine left a cell to the end")
            }
          }
        }
        run.atEnd { [self] in
          run.require(received == counted, "counted: \(counted), received: \(received)")
        }
      }

      deinit { one.deallocate() }

      func bring(_ value: Int) {
        run.thread("source \(value)") { [unowned self] in
          lock.lock()
          if one.settle() {
            outcome.store(value, ordering: .relaxed)
            counted.append(value)
          }
          one.wake(leaving: lock)
        }
      }

      /// As `bring`, by a body that may only run while the coroutine is in its call.
      func bringByBody(_ value: Int) {
        run.thread("body") { [unowned self] in
          lock.lock()
          let begins = one.holdToEnd()
          lock.unlock()
          guard begins else { return }
          bodies += 1
          lock.lock()
          if one.settle() {
            outcome.store(value, ordering: .relaxed)
            counted.append(value)
          }
          one.wake(leaving: lock)
        }
        run.atEnd { [self] in run.require(bodies == received.count, "\(bodies) bodies, received: \(received)") }
      }

      /// Cancels the job; where it is parked, the interrupt ends its wait.
      func cancel() {
        run.thread("canceller") { [unowned self] in
          let record = job.record
          record.pointee.flags.bitwiseOr(JobFlags.cancelled, ordering: .acquiringAndReleasing)
          guard job.parked.passOrEnd() else { return }
          let word = record.pointee.wait.load(ordering: .acquiring)
          if word & 0xFF == 1, record.isCancellationVisible, record.claim(WaitEpoch(word: word), WakeReason.cancelled) {
            Carrier.makeReady(record)
          }
        }
      }
    }

    private static func race(_ run: Explorer) {
      let world = World(run)
      world.bring(1)
      world.bring(2)
      world.cancel()
    }

    private static func cancelledBefore(_ run: Explorer) {
      let world = World(run, isCancelled: true)
      world.bring(1)
    }

    private static func toEnd(_ run: Explorer) {
      let world = World(run, toEnd: true)
      world.bring(1)
      world.cancel()
    }

    private static func held(_ run: Explorer) {
      let world = World(run)
      world.bringByBody(1)
      world.cancel()
    }
  }
}
