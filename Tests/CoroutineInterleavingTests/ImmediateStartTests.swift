internal import CCoroutine
import Synchronization
import Testing

// Job/ImmediateStart.swift and Cancellation/Interrupt.swift: who resumes a job that somebody else than its scheduler
// has.

extension InterleavingTests {
  @Suite struct ImmediateStartTests {
    @Test func `a job that is woken while its starter leaves is resumed once, switched out`() {
      let found = Explorer.explore(Self.wokenEarly)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a job that is cancelled while its starter leaves is resumed once, switched out`() {
      let found = Explorer.explore(Self.cancelledEarly)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a watchdog looks at a job's frames only while nobody resumes it`() {
      let found = Explorer.explore { Self.watched($0) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `so it does for a job that never ran, and waits as it releases its captures`() {
      let found = Explorer.explore { Self.watched($0, isDropped: true) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [
      Fault.torn("leaveForeign()"),  // the bit that the scheduler leaves behind is overwritten
      .torn("deferIfForeign(_:_:)"),  // it is left behind when nobody will look
      .skipped("deferIfForeign(_:_:)"),
      .reads(0, in: "deferIfForeign(_:_:)"),  // resumed on a stack that is in use
    ])
    func `a woken job is lost or resumed too early without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault, Self.wokenEarly).failure != nil)
    }

    @Test(arguments: [Fault.torn("leaveForeign()"), .reads(0, in: "deferIfForeign(_:_:)")])
    func `a cancelled job is lost or resumed too early without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault, Self.cancelledEarly).failure != nil)
    }

    @Test(arguments: [
      Fault.skipped("stillWaits(_:)"),  // looks at frames of a job that has been woken
      .skipped("holdParked()"),  // looks without `foreign`
      .reads(0, in: "deferIfForeign(_:_:)"),
    ])
    func `a watchdog looks at the frames of a running job without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault) { Self.watched($0) }.failure != nil)
    }

    // MARK: Models

    /// A job and its scheduler, which drains; the job runs at most one piece after its wait.
    private final class World {
      let run: Explorer
      let home = Scheduler()
      let job: AnyJob
      let published = Gate()
      /// What the job does on its stack, and others with its frames.
      let frames = Atomic<Int>(0)
      var epoch = WaitEpoch(word: 0)
      var resumes = 0

      init(_ run: Explorer) {
        self.run = run
        job = AnyJob(on: home)
        job.look = { [unowned self] in useFrames("looked at") }
        job.firstPiece = { [unowned self] in beginWait() }
        addDrain(home, "home")
      }

      func check() {
        run.atEnd { [self] in
          run.require(resumes == 1, "the job was resumed \(resumes) times")
          job.record.pointee.context.map(StackRunner.free)
        }
      }

      func beginWait() {
        epoch = job.record.beginWait(.callback)
        published.open()
      }

      /// The job is parked already, instead of being started.
      func park() {
        if case .success(let stack) = StackRunner.make(1) { job.record.pointee.context = stack }
        beginWait()
        job.nameContext()
        job.switchedOut.store(true, ordering: .releasing)
      }

      func addDrain(_ scheduler: Scheduler, _ name: String) {
        run.thread(name) { [unowned self] in
          scheduler.host { drain(scheduler) }
        }
      }

      private func drain(_ scheduler: Scheduler) {
        while true {
          scheduler.inbox.takeAll(isShared: true) { scheduler.handle($0) }
          while let job = scheduler.readyQueue.popFirst() {
            if !scheduler.deferIfForeign(job, JobFlags.deferredWake) { resume(job) }
          }
          if scheduler.inbox.goIdle() { return }
        }
      }

      private func resume(_ job: JobRef) {
        let stack = job.pointee.context.unsafelyUnwrapped
        run.require(cco_is_parked(&stack.pointee.parked), "the job was resumed before it was switched out")
        self.job.switchedOut.store(false, ordering: .relaxed)
        resumes += 1
        useFrames("run")
        _ = job.endWait()
      }

      /// Takes two steps, so that somebody else may come in between, who must not.
      private func useFrames(_ verb: String) {
        let users = frames.wrappingAdd(1, ordering: .relaxed).newValue
        run.require(users == 1, "the job's frames were \(verb) while others used them")
        frames.wrappingSubtract(1, ordering: .relaxed)
      }

      func wake() {
        published.pass()
        if job.record.claim(epoch, WakeReason.delivered) { Carrier.makeReady(job.record) }
      }

      /// Asks the job to end, by a flag of its record.
      ///
      /// A job that was cancelled loses a value that comes later. A job whose deadline has passed does not.
      func interrupt(_ flag: UInt32) {
        job.record.pointee.flags.bitwiseOr(flag, ordering: .acquiringAndReleasing)
        job.interrupt()
      }
    }

    private static func wokenEarly(_ run: Explorer) {
      let world = World(run)
      run.thread("starter") { world.job.runImmediately() }
      run.thread("waker") { world.wake() }
      world.check()
    }

    private static func cancelledEarly(_ run: Explorer) {
      let world = World(run)
      run.thread("starter") { world.job.runImmediately() }
      run.thread("canceller") {
        world.published.pass()
        world.interrupt(JobFlags.cancelled)
      }
      world.check()
    }

    /// The watchdog has taken an interrupt out of the inbox, while a waker ends the wait.
    ///
    /// A dropped job has settled. It waits in a shield, because its cancellation would end each other wait.
    private static func watched(_ run: Explorer, isDropped: Bool = false) {
      let world = World(run)
      world.job.completion.isSettled = isDropped
      let rescuer = Scheduler()
      // It does nothing else, so it may as well drain when everything else has ended.
      run.atEnd { rescuer.inbox.takeAll(isShared: true) { _ in world.resumes += 1 } }
      world.park()
      let state = isDropped ? JobFlags.cancelled | JobFlags.shielded : JobFlags.begun
      let flags = JobFlags.signalled | JobFlags.interruptPending | state
      world.job.record.pointee.flags.bitwiseOr(flags, ordering: .acquiringAndReleasing)
      // The interrupt's reference.
      _ = Unmanaged.passRetained(world.job)
      run.thread("waker") { world.wake() }
      run.thread("watchdog") { world.home.handleInterrupt(of: world.job.record, rescuer: rescuer) }
      world.check()
    }
  }
}
