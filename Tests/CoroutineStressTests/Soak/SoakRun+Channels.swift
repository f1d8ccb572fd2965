import Coroutine

extension SoakRun {
  func send(_ index: Int) throws {
    let channel = world.channels[index]
    let token = world.token()
    token.mustArrive(.once)
    channel.senders.change()
    defer { channel.senders.change(by: -1) }
    try wait("send", until: channel.canSend) { try channel.channel.send(token) }
  }

  func receive(_ index: Int) throws {
    let channel = world.channels[index]
    channel.receivers.change()
    defer { channel.receivers.change(by: -1) }
    try wait("receive", until: channel.canReceive) { try channel.channel.receive() }?.receive()
  }

  func receiveAll(_ index: Int) throws {
    let channel = world.channels[index]
    channel.receivers.change()
    defer { channel.receivers.change(by: -1) }
    for token in try wait("receiveAll", until: channel.canReceive, { try channel.channel.receiveAll() }) {
      token.receive()
    }
  }

  /// What it holds already is not in the channel, so a receiver elsewhere need not be able to go on.
  func receiveMany(_ index: Int, _ count: Int) throws {
    let channel = world.channels[index]
    channel.receivers.change()
    defer { channel.receivers.change(by: -1) }
    for token in try wait("receive(count:)", until: channel.canReceive, { try channel.channel.receive(count: count) }) {
      token.receive()
    }
  }

  func iterate(_ index: Int, _ count: Int) throws {
    let channel = world.channels[index]
    channel.receivers.change()
    defer { channel.receivers.change(by: -1) }
    var left = count
    try wait("iteration", until: channel.canReceive) {
      while let token = try channel.channel.receive() {
        token.receive()
        left -= 1
        if left == 0 { break }
      }
    }
  }

  static func trySend(_ channel: SoakChannel, _ token: SoakToken) {
    token.mustArrive(channel.channel.trySend(token) == .sent ? .once : .never)
  }

  static func tryReceive(_ channel: SoakChannel) {
    if case .received(let token) = channel.channel.tryReceive() { token.receive() }
  }

  func select(_ cases: [SoakCase], _ isBiased: Bool) throws {
    var timeout: Int?
    var endings: [@Sendable () -> Bool] = []
    var undo: [() -> Void] = []
    defer { for step in undo { step() } }
    // Looked up once: while the roots are launched, one number stands for one root, and then for another.
    let joined = cases.map { single -> Job<Int>? in
      if case .join(let index) = single { world.root(index) } else { nil }
    }
    for (single, job) in zip(cases, joined) {
      switch single {
      case .receive(let index):
        let channel = world.channels[index]
        channel.selectReceivers.change()
        undo.append { channel.selectReceivers.change(by: -1) }
        endings.append { channel.hasValue || channel.senders.now > 0 }
      case .send(let index):
        let channel = world.channels[index]
        channel.selectSenders.change()
        undo.append { channel.selectSenders.change(by: -1) }
        endings.append { channel.hasRoom || channel.receivers.now > 0 }
      case .await(let index): endings.append { [promise = world.promises[index]] in promise.isSettled }
      case .join: if let job { endings.append { job.isFinished } }
      case .lock(let index): endings.append { [counter = world.mutexCounters[index]] in !counter.isHeld }
      case .acquire(let index):
        let semaphore = world.semaphores[index]
        semaphore.want(1)
        undo.append { semaphore.wantNoMore(1) }
        endings.append { semaphore.canTake }
      case .timeout(let micros): timeout = micros
      case .otherwise: timeout = 0
      }
    }
    let run = timeout.map { timed($0) } ?? self
    let ready: @Sendable () -> Bool = { [endings] in endings.contains { $0() } }
    // An awaited member may have been cancelled.
    try run.wait("co_select", isPlain: false, until: ready()) {
      try co_select(biased: isBiased) { for (single, job) in zip(cases, joined) { try selectCase(single, job) } }
    }
  }

  private func selectCase(_ single: SoakCase, _ joined: Job<Int>?) throws -> SelectCase<Void> {
    let world = self.world
    switch single {
    case .receive(let index): return world.channels[index].channel.onReceive { $0?.receive() }
    case .send(let index):
      let token = world.token()
      return world.channels[index].channel.onSend(token) { token.mustArrive(.once) }
    case .await(let index): return world.promises[index].onAwait { _ in }
    case .join:
      guard let joined else { return SelectCase.onTimeout(.zero) {} }
      return joined.onAwait { _ in }
    case .lock(let index):
      return world.mutexes[index].onLock {
        hold(index)
        leave(index)
        world.mutexes[index].unlock()
      }
    case .acquire(let index):
      return world.semaphores[index].semaphore.onAcquire {
        take(index, 1)
        world.semaphores[index].taken.change(by: -1)
        world.semaphores[index].semaphore.release()
      }
    case .timeout(let micros): return SelectCase.onTimeout(.microseconds(micros)) {}
    case .otherwise: return SelectCase.otherwise {}
    }
  }
}
