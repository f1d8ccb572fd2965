import Coroutine
import Foundation

// Coroutines that wait in many situations: below the standard library's loops, below Foundation and the C library, in
// every lock, in the bodies of generators. StackZooTests starts it, and compares what the program reads of its own
// stacks with what gdb unwinds by the tables of the compiler.
//
// Prints `pid N`, then one line for each coroutine, `NAME ID: ADDRESS …`, and `ready`. Ends with its standard input.

// Where a coroutine never comes to its wait.
alarm(300)
let gate = Promise<Void>()

/// Waits, in a frame of its own.
@inline(never)
@Sendable func park() throws {
  try co_await(gate)
  passed()
}

@inline(never)
@Sendable func passed() {}

@inline(never)
@Sendable func recurse(_ depth: Int) throws {
  if depth == 0 { try park() } else { try recurse(depth - 1) }
  passed()
}

struct ParkingKey: Hashable {
  let number: Int
  func hash(into hasher: inout Hasher) {
    hasher.combine(number)
    try? park()
  }
}

struct ParkingText: CustomStringConvertible {
  var description: String {
    try? park()
    return "text"
  }
}

struct ParkingValue: Codable {
  init(from decoder: any Decoder) throws { try park() }
  func encode(to encoder: any Encoder) throws { try park() }
  init() {}
}

protocol Shape { func area() throws -> Int }
struct Square: Shape {
  func area() throws -> Int {
    try park()
    return 4
  }
}
class Animal { func speak() throws { try park() } }
final class Dog: Animal {
  override func speak() throws {
    try super.speak()
    passed()
  }
}

let (mutex, lock, semaphore) = (FairMutex(), FairReadWriteLock(), FairSemaphore(1))
let (rendezvous, full) = (Channel<Int>(), Channel<Int>(1))
let never = Promise<Int>()

let situations: [(String, @Sendable () throws -> Void)] = [
  ("promise", { try park() }),
  ("delay", { try co_delay(.seconds(1000)) }),
  ("recursion", { try recurse(50) }),
  ("map", { _ = try [1, 2].map { _ in try park() } }),
  ("forEach", { try [1].forEach { _ in try park() } }),
  (
    "reduce",
    {
      _ = try [1].reduce(0) { _, _ in
        try park()
        return 1
      }
    }
  ),
  (
    "filter",
    {
      _ = try (1...3).filter { _ in
        try park()
        return true
      }
    }
  ),
  (
    "sort",
    {
      _ = try [3, 1, 2].sorted {
        try park()
        return $0 < $1
      }
    }
  ),
  ("lazy", { for _ in [1, 2].lazy.map({ _ in try? park() }) { passed() } }),
  ("dictionary", { _ = try [1: 2].mapValues { _ in try park() } }),
  ("hash", { _ = Set([ParkingKey(number: 1), ParkingKey(number: 2)]) }),
  ("text", { _ = "\(ParkingText())" }),
  ("optional", { _ = try Optional(1).map { _ in try park() } }),
  ("existential", { _ = try ([Square()] as [any Shape])[0].area() }),
  ("class", { try (Dog() as Animal).speak() }),
  ("buffer", { try withUnsafeTemporaryAllocation(byteCount: 256, alignment: 64) { _ in try park() } }),
  (
    "escaping",
    {
      let body: () throws -> Void = { try park() }
      try body()
    }
  ),
  ("receive", { _ = try rendezvous.receive() }),
  (
    "send",
    {
      try full.send(1)
      try full.send(2)
    }
  ),
  ("mutex", { try mutex.withLock { try park() } }),
  ("waits for mutex", { try mutex.withLock { passed() } }),
  ("write lock", { try lock.withWriteLock { try park() } }),
  ("waits for read lock", { try lock.withReadLock { passed() } }),
  (
    "semaphore",
    {
      try semaphore.acquire()
      try semaphore.acquire()
    }
  ),
  (
    "select",
    {
      try co_select {
        never.onAwait { _ in passed() }
        Promise<Int>().onAwait { _ in passed() }
      }
    }
  ),
  ("scope", { try co_scope { scope in _ = scope.launch { try park() } } }),
  ("timeout", { try co_timeout(.seconds(1000)) { try park() } }),
  ("shield", { try co_shield { try park() } }),
  (
    "generator",
    {
      for _ in co_sequence(
        of: Int.self,
        {
          try $0(1)
          try park()
        }
      ) { passed() }
    }
  ),
  (
    "nested generator",
    {
      for _ in co_sequence(
        of: Int.self,
        { yield in
          for value in co_sequence(
            of: Int.self,
            {
              try $0(1)
              try park()
            }
          ) { try yield(value) }
        }
      ) { passed() }
    }
  ),
  ("decoder", { _ = try? JSONDecoder().decode(ParkingValue.self, from: Data("{}".utf8)) }),
  ("encoder", { _ = try? JSONEncoder().encode([ParkingValue()]) }),
]

// One after the other, because some of them wait for what an earlier one holds.
for (name, body) in situations {
  co_launch(name: name, body)
  while CoroutineRuntime.snapshot().coroutines.contains(where: { $0.state != .waiting }) { sched_yield() }
}

/// All coroutines, once each has left its stack.
///
/// They count as waiting some instructions before that, and until then their stacks cannot be read.
func parkedCoroutines() -> [CoroutineRuntime.Snapshot.Coroutine] {
  while true {
    let entries = CoroutineRuntime.snapshot(stacks: true).coroutines
    if entries.allSatisfy({ $0.state == .waiting && !$0.isTorn }) { return entries }
    sched_yield()
  }
}

print("pid \(getpid())")
for entry in parkedCoroutines() {
  print("\(entry.name ?? "child") \(entry.id): \(entry.stack.map { String($0, radix: 16) }.joined(separator: " "))")
}
if getenv("ZOO_RUNS") != nil {
  let hasBegun = Promise<Void>()
  co_launch(name: "runs") {
    hasBegun.fulfill()
    while true {}
  }
  // It counts as running some instructions before its thread is on its stack.
  while !hasBegun.isSettled { sched_yield() }
}
// What looks at it may take long on a slow machine.
alarm(0)
print("ready")
fflush(nil)
_ = readLine()
_exit(0)
