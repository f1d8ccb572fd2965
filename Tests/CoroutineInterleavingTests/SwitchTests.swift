import CCoroutine
import Synchronization
import Testing

// Scheduler/Arrival.swift: a coroutine that changes its queue, against its cancellation.

extension InterleavingTests {
  @Suite struct SwitchTests {
    /// Fewer preemptions than usual: four threads, whose operations nearly all meet another's.
    @Test(arguments: [(JobFlags.cancelled, 1), (JobFlags.signalled, 2)])
    func `a job that is cancelled as it arrives continues once, on the queue that has claimed it`(
      _ flag: UInt32,
      _ preemptions: Int
    ) {
      let found = Explorer.explore(preemptions: preemptions) { Self.cancelled($0, flag) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a job that gives up and goes again arrives once, and its first arrival is dropped`() {
      let found = Explorer.explore(preemptions: 1, Self.again)
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [Fault.torn("claim(_:_:)"), .compares(mask: 0, in: "claim(_:_:)")])
    func `a job runs twice without`(_ fault: Fault) {
      #expect(Explorer.explore(preemptions: 2, with: fault) { Self.cancelled($0, JobFlags.signalled) }.failure != nil)
    }

    @Test func `a job runs while its frames are looked at, if its new scheduler does not wait for that`() {
      let found = Explorer.explore(preemptions: 2) { Self.cancelled($0, JobFlags.signalled, outlasts: false) }
      #expect(found.failure?.contains("the job's frames were") ?? false)
    }

    // MARK: Models

    private final class World {
      let run: Explorer
      let (home, away) = (Scheduler(), Scheduler())
      private(set) var job: AnyJob
      /// Where the job has continued after each wait.
      var continued: [String] = []
      let frames = Atomic<Int>(0)
      /// Closed while the job runs at home.
      let homeIsFree = Gate()

      init(_ run: Explorer, switches: Int) {
        self.run = run
        job = AnyJob(on: home)
        job.isThread = true
        job.look = { [unowned self] in useFrames("looked at") }
        job.left = { [unowned self] in homeIsFree.open() }
        run.thread("job") { [unowned self] in
          Carrier.enter(home) { carrier in
            for _ in 0..<switches where !isAway { switchOver(carrier) }
          }
          homeIsFree.open()
        }
        addDrain(home, "home")
        addDrain(away, "away")
        run.atEnd { [self] in
          run.require(away.pins == 0, "\(away.pins) pins are left")
          run.require(!job.resumed.isOpen, "the job was resumed once too often")
          run.require(isKnownUniquelyReferenced(&job), "an arrival or an interrupt still holds the job")
        }
      }

      private var isAway: Bool { continued.last == "away" }

      private func switchOver(_ carrier: UnsafeMutablePointer<Carrier>) {
        do {
          if let error = job.record.cancellation() { throw error }
          try Carrier.switchOver(carrier, job.record, to: away, holding: nil)
          continued.append("away")
        } catch {
          continued.append("home")
          _ = job.record.pointee.flags.bitwiseAnd(~JobFlags.signalled, ordering: .relaxed)
        }
        let scheduler = job.record.pointee.scheduler.now.toOpaque()
        let place = isAway ? away : home
        run.require(scheduler == Unmanaged.passUnretained(place).toOpaque(), "it is not where it continues")
        useFrames("run")
      }

      private func addDrain(_ scheduler: Scheduler, _ name: String) {
        run.thread(name) { [unowned self] in scheduler.host { drain(scheduler) } }
      }

      private func drain(_ scheduler: Scheduler) {
        // A job that runs keeps the drain of its queue.
        if scheduler === home { homeIsFree.pass() }
        repeat {
          scheduler.inbox.takeAll(as: nil) { scheduler.handle($0) }
          while case .work(let item)? = scheduler.work.popFirst() { item.run() }
          while let next = scheduler.readyQueue.popFirst() {
            if next.hold.deferWake() { continue }
            if scheduler === home { homeIsFree.close() }
            Carrier.makeReady(next)
            if scheduler === home { homeIsFree.pass() }
          }
        } while !scheduler.inbox.goIdle()
      }

      /// Takes two steps, so that somebody else may come in between, who must not.
      private func useFrames(_ verb: String) {
        let users = frames.wrappingAdd(1, ordering: .relaxed).newValue
        run.require(users == 1, "the job's frames were \(verb) while others used them")
        frames.wrappingSubtract(1, ordering: .relaxed)
      }

      func cancel(_ flag: UInt32) {
        job.record.pointee.flags.bitwiseOr(flag, ordering: .acquiringAndReleasing)
        job.interrupt()
      }
    }

    private static func cancelled(_ run: Explorer, _ flag: UInt32, outlasts: Bool = true) {
      let world = World(run, switches: 1)
      world.job.outlastsInspections = outlasts
      run.thread("canceller") { world.cancel(flag) }
      run.atEnd { run.require(world.continued.count == 1, "it has continued at \(world.continued)") }
    }

    private static func again(_ run: Explorer) {
      let world = World(run, switches: 2)
      run.thread("canceller") { world.cancel(JobFlags.signalled) }
      run.atEnd {
        let isRight = [["away"], ["home", "away"], ["home", "home"]].contains(world.continued)
        run.require(isRight, "it has continued at \(world.continued)")
      }
    }
  }
}
