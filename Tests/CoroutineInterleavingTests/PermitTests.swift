import Synchronization
import Testing

// Lock/Permits.swift and Lock/Permits.swift: permits, taken and given by compare-and-swap or through the queue.

extension InterleavingTests {
  @Suite struct PermitTests {
    @Test func `one at a time has the only permit, and everyone gets it`() {
      let found = Explorer.explore { Self.mutex($0, "a", "b") }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `two queue for the only permit, and both get it`() {
      // With a third preemption, which takes some seconds in a debug build, it was run by hand: no failure.
      let found = Explorer.explore(preemptions: 2) { Self.mutex($0, "a", "b", "c") }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a permit that is granted while its waiter is cancelled is not lost`() {
      let found = Explorer.explore(Self.cancelledAndGranted)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `who waits behind a cancelled waiter gets what is there`() {
      let found = Explorer.explore(Self.withdrawal)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `two tries get the two permits although CONTENDED is left over`() {
      let found = Explorer.explore(preemptions: 3, Self.tries)
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [
      Fault.torn("takeAtOnce(_:)"),  // two take the permit
      .torn("takeOrContend(_:)"),  // sets CONTENDED over a give that came in between
      .skipped("takeOrContend(_:)"),  // waits without CONTENDED: the giver does not look for waiters
      .compares(mask: ~1, in: "give(_:)"),  // gives past a waiter
      .torn("give(_:)"),
    ])
    func `a permit is doubled or a waiter forgotten without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault) { Self.mutex($0, "a", "b") }.failure != nil)
    }

    @Test func `the grant and the cancellation both resume the waiter without an atomic claim`() {
      #expect(Explorer.explore(with: .torn("claim(_:_:)"), Self.cancelledAndGranted).failure != nil)
    }

    // The load that finds nobody waiting stands for what was also tried by hand: `withdraw` in `wait` that leaves the
    // lock without `leaveLock(granting: 0)`. The second waits for ever, in the second schedule.
    @Test func `who waits behind a cancelled waiter is forgotten unless that one grants`() {
      #expect(Explorer.explore(with: .reads(0, in: "leaveLock(granting:)"), Self.withdrawal).failure != nil)
    }

    // MARK: Models

    private final class Semaphore: Inspectable {
      private var storage: Permits
      var permits: PermitsRef { propertyAddress(in: self, at: 0, as: Permits.self) }

      init(_ available: UInt, limit: UInt) {
        storage = Permits(available, limit: limit)
        _ = PermitsRef(&storage, at: permits)
      }
    }

    private final class World {
      let run: Explorer
      let scheduler = Scheduler()
      let semaphore: Semaphore
      let inside = Atomic<Int>(0)
      var jobs: [AnyJob] = []

      /// `available` permits at first, `finally` at the end.
      init(_ run: Explorer, _ available: UInt, of limit: UInt, finally: UInt) {
        self.run = run
        semaphore = Semaphore(available, limit: limit)
        run.atEnd { [self] in
          run.require(semaphore.permits.pointee.word.known.now >> 1 == finally, "permits were lost or made up")
          run.require(semaphore.permits.pointee.waiters.first == nil, "somebody is still queued")
        }
      }

      /// A job that acquires `count` permits, has them for a while, and releases them.
      func user(_ name: String, _ count: UInt) -> AnyJob {
        let job = AnyJob(on: scheduler)
        job.isThread = true
        jobs.append(job)
        run.thread(name) { [unowned self] in
          Carrier.enter(scheduler) { carrier in
            guard acquire(count, carrier, job.record) else { return }
            let held = inside.wrappingAdd(Int(count), ordering: .relaxed).newValue
            run.require(held <= Int(semaphore.permits.pointee.total), "\(held) permits are held")
            inside.wrappingSubtract(Int(count), ordering: .relaxed)
            run.require(semaphore.permits.give(count), "a permit was refused")
          }
        }
        return job
      }

      /// As the scheduler does that handles an interrupt: a job that is not parked looks before it waits.
      func cancelWhenParked(_ job: AnyJob) {
        run.thread("canceller") {
          guard job.parked.passOrEnd() else { return }
          let record = job.record
          record.pointee.flags.bitwiseOr(JobFlags.cancelled, ordering: .acquiringAndReleasing)
          let word = record.pointee.wait.load(ordering: .acquiring)
          if word & 0xFF == 1, record.claim(WaitEpoch(word: word), WakeReason.cancelled) { Carrier.makeReady(record) }
        }
      }

      private func acquire(_ count: UInt, _ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) -> Bool {
        if semaphore.permits.takeAtOnce(count) { return true }
        do {
          try semaphore.permits.wait(count, .permits, of: semaphore, carrier, job)
          return true
        } catch {
          return false
        }
      }
    }

    private static func mutex(_ run: Explorer, _ names: String...) {
      let world = World(run, 1, of: 1, finally: 1)
      for name in names { _ = world.user(name, 1) }
    }

    /// Two jobs ask for permits, of which one is there.
    ///
    /// The first wants two, and is cancelled. The second, which may be queued behind it, wants one.
    private static func withdrawal(_ run: Explorer) {
      let world = World(run, 1, of: 2, finally: 1)
      world.cancelWhenParked(world.user("first", 2))
      _ = world.user("second", 1)
    }

    /// A select has set CONTENDED, asking for more than is there, and does not wait.
    private static func tries(_ run: Explorer) {
      let world = World(run, 2, of: 3, finally: 0)
      let permits = world.semaphore.permits
      permits.pointee.lock.lock()
      run.require(!permits.takeOrContend(3), "three of two permits were taken")
      permits.pointee.lock.unlock()
      for name in ["a", "b"] {
        run.thread(name) { [unowned world] in run.require(world.semaphore.permits.take(1), "a try failed") }
      }
    }

    /// A permit is given to a waiter that is cancelled.
    private static func cancelledAndGranted(_ run: Explorer) {
      let world = World(run, 0, of: 1, finally: 1)
      world.cancelWhenParked(world.user("waiter", 1))
      run.thread("giver") { _ = world.semaphore.permits.give(1) }
    }
  }
}
