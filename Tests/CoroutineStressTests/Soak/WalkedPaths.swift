import Coroutine
import Synchronization

// Coroutines whose stacks are known: each walks through calls that its seed prescribes, waits at the end of the walk,
// and begins the next one. WalkSoakTests compares what snapshots read with these walks.

/// The walks of one coroutine.
///
/// The coroutine alone calls `begin`, `next` and what they call; any thread reads `count` and calls `path`.
final class Walker: @unchecked Sendable {
  // Sound because `rest` belongs to the coroutine, and all else is constant or atomic.

  /// The calls of a walk, and at last what it waits for.
  enum Call: UInt8, CaseIterable {
    case a, b, c, generator, promise, receive, lock, delay, select, yield

    static var calls: UInt64 { 4 }
    static var waits: UInt64 { 6 }
  }

  let number: Int
  private let seed: UInt64
  /// The number of walks that have begun.
  let count = Atomic<Int>(0)
  private var rest: ArraySlice<Call> = []
  /// What the functions change after their calls, so that none of them ends in its call, and no two are merged.
  var (one, other) = (0, 0)

  init(_ number: Int, seed: UInt64) { (self.number, self.seed) = (number, seed) }

  /// The calls of a walk, from the first to the wait.
  func path(_ walk: Int) -> [Call] {
    var random = SeededRandom(seed: seed &+ UInt64(number) << 40 &+ UInt64(walk))
    let depth = random.next() % 11
    var path = (0..<depth).compactMap { _ in Call(rawValue: UInt8(random.next() % Call.calls)) }
    // A generator takes a stack of its own.
    if let first = path.firstIndex(of: .generator) {
      path = path.enumerated().map { $0.element == .generator && $0.offset > first ? .a : $0.element }
    }
    return path + [Call(rawValue: UInt8(Call.calls + random.next() % Call.waits))!]
  }

  func begin() { rest = path(count.wrappingAdd(1, ordering: .releasing).newValue)[...] }

  func next() -> Call { rest.removeFirst() }
}

/// Walks until `isOver`, `limit` times at most; `mutex` is one that others lock too.
func walk(_ walker: Walker, limit: Int, _ mutex: FairMutex, until isOver: Census) throws {
  var walks = 0
  while isOver.now == 0, walks < limit {
    walker.begin()
    try walkOn(walker, mutex)
    walks += 1
  }
}

@inline(__always)
private func walkOn(_ walker: Walker, _ mutex: FairMutex) throws {
  switch walker.next() {
  case .a: try walkA(walker, mutex)
  case .b: try walkB(walker, mutex)
  case .c: try walkC(walker, mutex)
  case .generator: try walkGenerator(walker, mutex)
  case .promise: try waitPromise(walker)
  case .receive: try waitReceive(walker)
  case .lock: try waitLock(walker, mutex)
  case .delay: try waitDelay(walker)
  case .select: try waitSelect(walker)
  case .yield: try waitYield(walker)
  }
}

@inline(never)
private func walkA(_ walker: Walker, _ mutex: FairMutex) throws {
  try walkOn(walker, mutex)
  walker.one &+= 1
}

@inline(never)
private func walkB(_ walker: Walker, _ mutex: FairMutex) throws {
  try walkOn(walker, mutex)
  walker.other = walker.one ^ 5
}

@inline(never)
private func walkC(_ walker: Walker, _ mutex: FairMutex) throws {
  try walkOn(walker, mutex)
  if walker.one > 3 { walker.other &-= walker.one }
}

@inline(never)
private func walkGenerator(_ walker: Walker, _ mutex: FairMutex) throws {
  let generator = Generator<Int, Void, Void> { yield in
    try walkOn(walker, mutex)
    try yield(1)
  }
  while case .yielded(let value) = try generator.step() { walker.one &+= value &* 3 }
}

@inline(never)
private func waitPromise(_ walker: Walker) throws {
  let promise = Promise<Int>()
  co_launch { promise.fulfill(7) }
  walker.one &+= try co_await(promise)
}

@inline(never)
private func waitReceive(_ walker: Walker) throws {
  let channel = Channel<Int>()
  let sender = co_launch { try channel.send(9) }
  walker.other &+= try channel.receive() ?? 0
  try sender.join()
}

@inline(never)
private func waitLock(_ walker: Walker, _ mutex: FairMutex) throws {
  try mutex.withLock { try co_yield() }
  walker.one ^= 17
}

@inline(never)
private func waitDelay(_ walker: Walker) throws {
  try co_delay(.microseconds(50))
  walker.other &-= 1
}

@inline(never)
private func waitSelect(_ walker: Walker) throws {
  let (one, other) = (Channel<Int>(), Channel<Int>())
  try co_select {
    one.onReceive { _ in walker.one = 0 }
    other.onReceive { _ in walker.other = 1 }
    SelectCase.onTimeout(.microseconds(20)) { walker.other &+= 2 }
  }
}

@inline(never)
private func waitYield(_ walker: Walker) throws {
  try co_yield()
  walker.one |= 1
}
