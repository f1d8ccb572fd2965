import Testing

// Scheduler/Inbox.swift: pushes, wake-ups, a drain, and a rescuer that takes messages out.

extension InterleavingTests {
  @Suite struct InboxTests {
    @Test func `every pushed message is handled once, in the order of its pusher`() {
      let found = Explorer.explore(Self.pushers)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a wake-up and pushes start one drain`() {
      let found = Explorer.explore(Self.wakeUps)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `what a rescuer leaves in the inbox keeps its order`() {
      let found = Explorer.explore(Self.rescue)
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [
      Fault.compares(mask: 0, in: "goIdle()"),  // goes idle over a message that has just been pushed
      .compares(mask: 0, in: "push(_:)"),  // pushes over another's message
      .torn("push(_:)"),
      .compares(mask: 0, in: "grab()"),  // takes what it saw, and drops what was pushed since
    ])
    func `a message is lost without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault, Self.pushers).failure != nil)
    }

    @Test(arguments: [Fault.torn("wakeUp()"), .compares(mask: 0, in: "wakeUp()"), .torn("goIdle()")])
    func `a second drain starts without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault, Self.wakeUps).failure != nil)
    }

    @Test(arguments: [
      // Takes newer messages while older ones are in the rescuer's hands: its lock excludes nobody.
      Fault.skipped("takeFree()"),
      .compares(mask: 0, in: "putBack(_:oldest:)"),
    ])
    func `the order is lost without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault, Self.rescue).failure != nil)
    }

    // MARK: Models

    /// An inbox, its drain, and the numbered messages that have been handled.
    private final class World {
      let run: Explorer
      let inbox = Inbox()
      /// Whose inbox it is, if a rescuer takes from it as well.
      let worker: WorkerState?
      let gate = Gate()
      var isDraining = false
      var handled: [Int] = []
      let items: UnsafeMutablePointer<WorkItem>
      let count: Int

      init(_ run: Explorer, _ count: Int, isShared: Bool = false) {
        self.run = run
        self.count = count
        worker = isShared ? WorkerState(0) : nil
        items = .allocate(capacity: count)
        items.initialize(repeating: WorkItem { _ in }, count: count)
        run.thread("drain") { [unowned self] in drain() }
        run.atEnd { [self] in check() }
      }

      deinit { items.deallocate() }

      func push(_ number: Int) {
        if inbox.push(.work(items + number)) { submit() }
      }

      func submit() {
        run.require(!isDraining, "a drain was started while another one was under way")
        isDraining = true
        gate.open()
      }

      private func drain() {
        while true {
          guard gate.passOrEnd() else { return }
          gate.close()
          repeat {
            inbox.takeAll(as: worker.map(Unmanaged.passUnretained)) { handle($0) }
          } while !inbox.goIdle()
          isDraining = false
        }
      }

      private func handle(_ message: Inbox.Message) {
        if case .work(let item) = message { handled.append(item - items) }
      }

      private func check() {
        run.require(handled.sorted() == Array(0..<count), "handled \(handled)")
        run.require(inbox.head.now == Inbox.idle, "the inbox is not idle at the end")
      }

      func requireOrder(_ numbers: Int...) {
        run.atEnd { [self] in run.require(handled.filter(numbers.contains) == numbers, "order: \(handled)") }
      }
    }

    private static func pushers(_ run: Explorer) {
      let world = World(run, 3)
      world.requireOrder(0, 1)
      run.thread("a") {
        world.push(0)
        world.push(1)
      }
      run.thread("b") { world.push(2) }
    }

    private static func wakeUps(_ run: Explorer) {
      let world = World(run, 1)
      for name in ["timer", "offer"] {
        run.thread(name) {
          if world.inbox.wakeUp() { world.submit() }
        }
      }
      run.thread("pusher") { world.push(0) }
    }

    /// The drain has begun, and a rescuer was told that it is stuck: it takes the job and leaves the work.
    private static func rescue(_ run: Explorer) {
      let world = World(run, 3, isShared: true)
      world.requireOrder(0, 1, 2)
      let scheduler = Scheduler()
      let job = AnyJob(on: scheduler)
      var rescued: [JobRef] = []
      world.push(0)
      _ = world.inbox.push(.job(job.record))
      world.push(1)
      run.thread("pusher") { world.push(2) }
      run.thread("rescuer") {
        var found = world.inbox.takeOut(from: world.worker!) { if case .job = $0 { true } else { false } }
        if found.mustStart { world.submit() }
        while case .job(let job)? = found.messages.popFirst() { rescued.append(job) }
      }
      run.atEnd {
        _ = scheduler
        run.require(rescued.allSatisfy { $0 == job.record } && rescued.count <= 1, "rescued what is no job")
      }
    }
  }
}
