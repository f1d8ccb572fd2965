import Synchronization
import Testing

// Ten bugs of async code, as people write them: programs that know of no coroutine and of no world. Each throws, or
// never ends, in some schedules.

struct Wrong: Error, CustomStringConvertible {
  let description: String
  init(_ description: String) { self.description = description }
}

/// A program with a bug.
struct AsyncBug: Sendable, CustomTestStringConvertible {
  let name: String
  let body: @Sendable () async throws -> Void
  /// Whether its Tasks share memory, and not only actors.
  var sharesMemory = false
  var testDescription: String { name }

  static let all: [AsyncBug] = [
    AsyncBug(name: "a balance that is checked before a wait", body: reentrancy),
    AsyncBug(name: "two calls of an actor as if they were one", body: checkThenAct),
    AsyncBug(name: "a waiter that is cancelled before it waits", body: lostContinuation, sharesMemory: true),
    AsyncBug(name: "two winners of a race", body: twoWinners, sharesMemory: true),
    AsyncBug(name: "an element that a cancelled receiver has taken", body: lostElement),
    AsyncBug(name: "an answer at the moment of the timeout", body: timeoutRace, sharesMemory: true),
    AsyncBug(name: "a child that is cancelled before it gives back", body: groupLeak),
    AsyncBug(name: "a Task that outlives its owner", body: outlivesOwner),
    AsyncBug(name: "an index from before a wait", body: mutatedCollection),
    AsyncBug(name: "a pool whose waiters give up", body: poolWithTimeouts),
  ]
}

/// A number that closures share.
private final class Shared: Sendable {
  private let stored = Mutex(0)
  var value: Int { stored.withLock { $0 } }
  func increase() { stored.withLock { $0 += 1 } }
}

/// Code between two calls of one actor: without any, the compiler makes one stay of them.
@inline(never) private func work(_ what: StaticString) { withExtendedLifetime(what) {} }

// MARK: 1. An actor is reentrant: what was checked before a wait need not hold after it

private actor Journal {
  private var lines: [Int] = []
  func write(_ amount: Int) { lines.append(amount) }
}

private actor BankAccount {
  private(set) var balance = 100
  private let journal = Journal()

  func withdraw(_ amount: Int) async {
    guard balance >= amount else { return }
    await journal.write(amount)
    balance -= amount
  }
}

@Sendable private func reentrancy() async throws {
  let account = BankAccount()
  await withTaskGroup { group in
    for _ in 0..<2 { group.addTask { await account.withdraw(60) } }
  }
  let left = await account.balance
  if left < 0 { throw Wrong("the balance is \(left)") }
}

// MARK: 2. Two calls are two steps

private actor Directory {
  private var names: Set<String> = []
  private(set) var entries = 0

  func contains(_ name: String) -> Bool { names.contains(name) }

  func insert(_ name: String) {
    names.insert(name)
    entries += 1
  }
}

@Sendable private func checkThenAct() async throws {
  let directory = Directory()
  @Sendable func register() async {
    if await directory.contains("ann") { return }
    work("make the entry")
    await directory.insert("ann")
  }
  async let first: Void = register()
  async let second: Void = register()
  _ = await (first, second)
  let entries = await directory.entries
  if entries != 1 { throw Wrong("\(entries) entries") }
}

// MARK: 3. The cancellation handler comes before the continuation is stored

private final class Gate: Sendable {
  private let waiter = Mutex<CheckedContinuation<Void, any Error>?>(nil)

  func wait() async throws {
    try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in waiter.withLock { $0 = continuation } }
    } onCancel: {
      let waiter = waiter.withLock { stored in
        defer { stored = nil }
        return stored
      }
      waiter?.resume(throwing: CancellationError())
    }
  }
}

@Sendable private func lostContinuation() async throws {
  let gate = Gate()
  let directory = Directory()
  let waiting = Task {
    await directory.insert("waiter")
    try await gate.wait()
  }
  await directory.insert("owner")
  waiting.cancel()
  _ = await waiting.result
}

// MARK: 4. The winner is decided in two steps

private actor Race {
  private(set) var isDecided = false
  func decide() { isDecided = true }
}

@Sendable private func twoWinners() async throws {
  let race = Race()
  let winners = Shared()
  @Sendable func run() async {
    if await race.isDecided { return }
    work("call the user")
    await race.decide()
    winners.increase()
  }
  await withTaskGroup { group in
    for _ in 0..<2 { group.addTask { await run() } }
  }
  if winners.value != 1 { throw Wrong("\(winners.value) winners") }
}

// MARK: 5. The one who has taken it does not deliver it

private actor Mailbox {
  private var letters: [Int] = []
  func put(_ letter: Int) { letters.append(letter) }
  func take() -> Int? { letters.isEmpty ? nil : letters.removeFirst() }
}

@Sendable private func lostElement() async throws {
  let mailbox = Mailbox()
  let sender = Task {
    for letter in 1...2 {
      try await Task.sleep(for: .milliseconds(2))
      await mailbox.put(letter)
    }
  }
  var received: [Int] = []
  for _ in 0..<3 {
    let next = await withTaskGroup(of: Int?.self) { group in
      group.addTask {
        while !Task.isCancelled {
          if let letter = await mailbox.take() { return letter }
          try? await Task.sleep(for: .microseconds(500))
        }
        return nil
      }
      group.addTask {
        try? await Task.sleep(for: .milliseconds(2))
        return nil
      }
      defer { group.cancelAll() }
      return await group.next() ?? nil
    }
    if let next { received.append(next) }
  }
  _ = await sender.result
  while let letter = await mailbox.take() { received.append(letter) }
  if received != [1, 2] { throw Wrong("received \(received)") }
}

// MARK: 6. Answer and timeout both find that the other one has not come

private actor Slots {
  private(set) var free: Int
  init(_ free: Int) { self.free = free }
  func take() { free -= 1 }
  func giveBack() { free += 1 }
}

@Sendable private func timeoutRace() async throws {
  let slots = Slots(1)
  let ends = Shared()
  await slots.take()
  @Sendable func end(after time: Duration) async {
    try? await Task.sleep(for: time)
    if ends.value > 0 { return }
    await slots.giveBack()
    ends.increase()
  }
  await withTaskGroup { group in
    group.addTask { await end(after: .milliseconds(2)) }  // the answer
    group.addTask { await end(after: .milliseconds(3)) }  // the timeout
  }
  let free = await slots.free
  if free != 1 { throw Wrong("\(free) free slots") }
}

// MARK: 7. Cancelled between taking and giving back

@Sendable private func groupLeak() async throws {
  let slots = Slots(1)
  let directory = Directory()
  try? await withThrowingTaskGroup { group in
    group.addTask {
      await slots.take()
      await directory.insert("a")
      try Task.checkCancellation()
      await slots.giveBack()
    }
    group.addTask {
      for name in ["b", "c", "d"] {
        await directory.insert(name)
        work("send")
      }
      throw Wrong("refused")
    }
    for try await _ in group {}
  }
  let free = await slots.free
  if free != 1 { throw Wrong("\(free) free slots") }
}

// MARK: 8. What a Task does when its owner has closed

private actor LogFile {
  private var isOpen = true
  private(set) var wroteAfterClose = false
  func write() { if !isOpen { wroteAfterClose = true } }
  func flush() {}
  func close() { isOpen = false }
}

@Sendable private func outlivesOwner() async throws {
  let file = LogFile()
  let saved = Task { await file.write() }
  await file.flush()
  work("say goodbye")
  await file.close()
  await saved.value
  if await file.wroteAfterClose { throw Wrong("written after close") }
}

// MARK: 9. The index is one of the collection before the wait

private actor Link {
  private let isDead: Bool
  init(isDead: Bool) { self.isDead = isDead }
  func send() -> Bool { !isDead }
}

private actor Hub {
  private(set) var links: [(id: Int, link: Link)] = []

  var ids: [Int] { links.map(\.id) }
  func join(_ id: Int, isDead: Bool) { links.append((id, Link(isDead: isDead))) }
  func leave(_ id: Int) { links.removeAll { $0.id == id } }

  func publish() async {
    var index = 0
    while index < links.count {
      if await links[index].link.send() {
        index += 1
      } else if index < links.count {
        links.remove(at: index)
      }
    }
  }
}

@Sendable private func mutatedCollection() async throws {
  let hub = Hub()
  for id in 1...4 { await hub.join(id, isDead: id == 3) }
  async let published: Void = hub.publish()
  async let left: Void = hub.leave(1)
  _ = await (published, left)
  let ids = await hub.ids
  if ids != [2, 4] { throw Wrong("\(ids) are left") }
}

// MARK: 10. A waiter gives up at the moment at which it is served

private actor Pool {
  private var free = 1
  private var waiters: [(id: Int, continuation: CheckedContinuation<Bool, Never>)] = []
  private var lastID = 0
  var freeCount: Int { free }

  func acquire(timeout: Duration) async -> Bool {
    if free > 0 {
      free -= 1
      return true
    }
    lastID += 1
    let id = lastID
    let timer = Task {
      try await Task.sleep(for: timeout)
      self.giveUp(id)
    }
    let isServed = await withCheckedContinuation { waiters.append((id, $0)) }
    timer.cancel()
    // Wrong: it was served, and forgets the connection if the time is over too.
    if Task.isCancelled { return false }
    return isServed
  }

  func release() {
    if waiters.isEmpty { free += 1 } else { waiters.removeFirst().continuation.resume(returning: true) }
  }

  private func giveUp(_ id: Int) {
    guard let index = waiters.firstIndex(where: { $0.id == id }) else { return }
    waiters.remove(at: index).continuation.resume(returning: false)
  }
}

@Sendable private func poolWithTimeouts() async throws {
  let pool = Pool()
  @Sendable func use() async {
    guard await pool.acquire(timeout: .milliseconds(5)) else { return }
    try? await Task.sleep(for: .milliseconds(3))
    await pool.release()
  }
  let users = (0..<3).map { _ in Task { await use() } }
  try? await Task.sleep(for: .milliseconds(3))
  users[1].cancel()
  for user in users { await user.value }
  let free = await pool.freeCount
  if free != 1 { throw Wrong("\(free) free connections") }
}
