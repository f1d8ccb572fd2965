import CCoroutine
import Coroutine
import Dispatch
import Glibc

/// A pipe, closed with its last user.
private final class Pipe: Sendable {
  let readEnd: Int32
  private let writeEnd: Int32

  init?() {
    var ends: [Int32] = [0, 0]
    guard pipe(&ends) == 0 else { return nil }
    (readEnd, writeEnd) = (ends[0], ends[1])
  }

  func write() {
    var byte: UInt8 = 1
    _ = Glibc.write(writeEnd, &byte, 1)
  }

  deinit {
    close(readEnd)
    close(writeEnd)
  }
}

/// Held by a Task's closure only: ends the flow when the Task has ended, or was not created.
private final class TaskLife: Sendable {
  private let flow: SoakFlowState
  init(_ flow: SoakFlowState) { self.flow = flow }
  deinit { flow.end() }
}

extension SoakRun {
  // MARK: Generators

  func generate(_ plan: SoakSequence) throws {
    let (world, flow) = (self.world, flow)
    func make(_ depth: Int) -> Generator<Int, Never, Void> {
      co_sequence { yield in
        world.deferred.change()
        defer { world.deferred.change(by: -1) }
        if depth > 0 { return try yield.all(of: make(depth - 1)) }
        for value in 0..<plan.count {
          if plan.waits {
            flow.enter(.outside("a generator's body"))
            defer { flow.leave() }
            if value % 2 == 0 { try co_yield() } else { try co_delay(.microseconds(20)) }
          }
          try yield(value)
        }
      }
    }
    let generator = make(plan.depth)
    var next = 0
    while next < plan.taken, let value = generator.next() {
      world.findings.expect(value == next, "a generator gave \(value) in place of \(next)")
      next += 1
    }
    if let failure = generator.failure {
      world.findings.expect(co_isCancelled, "a generator failed with \(failure)")
      throw failure
    }
    world.findings.expect(next == min(plan.taken, plan.count), "a generator of \(plan.count) ended after \(next)")
    if plan.closes { generator.close() }
  }

  // MARK: Actors

  static func startActor(_ world: SoakWorld, _ capacity: Channel<SoakMessage>.Capacity, _ index: Int) -> SoakActor {
    let flow = world.flow()
    let ref = co_actor(
      of: SoakMessage.self,
      on: index % 2 == 0 ? world.queues[0] : nil,
      name: "actor \(index)",
      mailbox: capacity,
      onUndelivered: { if case .tell(let token) = $0 { token.drop() } },
      { mailbox in
        world.deferred.change()
        defer { world.deferred.change(by: -1) }
        var handled = 0
        while true {
          flow.enter(.flows("Mailbox.receive") { false })
          defer { flow.leave() }
          guard let message = try mailbox.receive() else { return }
          flow.enter(.outside("an actor's handler"))
          flow.step()
          handled += 1
          switch message {
          case .tell(let token): token.receive()
          case .ask(let question, let reply):
            if handled % 7 == 0 { try co_yield() }
            // One of 11 is released unanswered.
            if handled % 11 != 0 { reply(question + 1) }
          }
        }
      }
    )
    flow.job.with { $0 = ref.job }
    ref.job.finally { flow.end() }
    return SoakActor(ref: ref, flow: flow)
  }

  func tell(_ index: Int) throws {
    guard let actor = world.actor(index) else { return }
    let token = world.token()
    token.mustArrive(.once)
    try wait("tell", until: actor.flow.isIdle) { try actor.ref.tell(.tell(token)) }
  }

  func ask(_ index: Int, _ timeout: Int?) throws {
    guard let actor = world.actor(index) else { return }
    let run = timeout.map { timed($0) } ?? self
    let question = flow.stepCount
    let answer: Int = try run.wait("ask", until: actor.flow.isIdle) {
      try actor.ref.ask(timeout: timeout.map { .microseconds($0) }) { .ask(question, $0) }
    }
    world.findings.expect(answer == question + 1, "the answer to \(question) was \(answer)")
  }

  // MARK: Outside the runtime

  func blocking(_ micros: Int) throws {
    let number = flow.number
    let result = try outside("co_blocking") {
      try co_blocking {
        usleep(UInt32(micros))
        return number
      }
    }
    world.findings.expect(result == number, "co_blocking gave another one's result")
  }

  func resumer(_ kind: SoakResumer) throws {
    let number = flow.number
    do {
      let result = try outside("co_suspend") {
        try co_suspend { (resumer: Resumer<Int>) in
          switch kind {
          case .now: resumer.resume(number)
          case .later: DispatchQueue.global().async { resumer.resume(number) }
          case .fails: DispatchQueue.global().async { resumer.fail(SoakCause()) }
          case .twice:
            DispatchQueue.global().async { resumer.resume(number) }
            DispatchQueue.global().async { resumer.resume(number) }
          case .dropped: break
          }
        }
      }
      world.findings.expect(result == number, "a resumer gave another one's result")
    } catch CoroutineError.abandoned where kind == .dropped {}
  }

  func descriptor() throws {
    guard let pipe = Pipe() else { return world.findings.add("pipe: error number \(errno)") }
    DispatchQueue.global().async { pipe.write() }
    try outside("co_untilReadable") { try co_untilReadable(pipe.readEnd) }
    var byte: UInt8 = 0
    world.findings.expect(Glibc.read(pipe.readEnd, &byte, 1) == 1, "a descriptor was said to be readable and is not")
    withExtendedLifetime(pipe) {}
  }

  /// The Task is a separate flow: it continues if the coroutine is cancelled.
  func async(_ steps: [SoakAsync]) throws {
    let (world, number) = (self.world, flow.number)
    let task = world.flow()
    let ready: @Sendable () -> Bool = { task.endCount > 0 }
    try wait("co_await of async code", isPlain: false, until: ready()) {
      try co_await { [life = TaskLife(task)] in
        defer { withExtendedLifetime(life) {} }
        for step in steps {
          world.findings.expect(SoakLocals.flow == number, "a Task has the locals of \(SoakLocals.flow)")
          task.step()
          try await Self.run(step, world, task)
        }
      }
    }
  }

  private static func run(_ step: SoakAsync, _ world: SoakWorld, _ task: SoakFlowState) async throws {
    defer { task.leave() }
    switch step {
    case .yield: await Task.yield()
    case .sleep(let micros):
      task.enter(.outside("Task.sleep"))
      try await Task.sleep(for: .microseconds(micros))
    case .receive(let index):
      let channel = world.channels[index]
      channel.receivers.change()
      defer { channel.receivers.change(by: -1) }
      task.enter(.flows("for await in a channel") { channel.canReceive })
      for try await token in channel.channel {
        token.receive()
        break
      }
    case .await(let index):
      let promise = world.promises[index]
      task.enter(.flows("value of a promise") { promise.isSettled })
      _ = try await promise.value
    case .job:
      task.enter(.outside("value of a job"))
      let value = try await co_launch {
        try co_yield()
        return 7
      }.value
      world.findings.expect(value == 7, "a job's value is \(value)")
    }
  }
}
