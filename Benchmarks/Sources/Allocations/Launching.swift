import Coroutine
import Dispatch
import Harness

// What has to allocate: a handle, a closure's context, a promise. The numbers are committed so that none is added
// unseen.

func countLaunching(into counts: inout Counts) throws {
  try counts.count("launch_join", 100) { count in
    var sum = 0
    for index in 0..<count { sum += try co_launch { index }.join() }
    expect(sum, equals: count * (count - 1) / 2, "sum of the results")
  }
  // In a coroutine that has inherited bindings, 2 and 20 of them: the number makes no difference.
  for bindings in [2, 20] {
    try bound(bindings) {
      try counts.count("launch_inherited_\(bindings)", 100) { count in
        for _ in 0..<count { try co_launch {}.join() }
      }
    }
  }
  try counts.count("launch_named", 100) { count in
    for _ in 0..<count { try co_launch(name: "a name of more than fifteen bytes") {}.join() }
  }
  try counts.count("launch_immediate", 100) { count in
    for _ in 0..<count { try co_launch(start: .immediate) {}.join() }
  }
  // The scope's own part is spread over its children: a hundred of them, so that it shows as hundredths.
  try counts.count("launch_in_scope", 100) { count in
    try co_scope { scope in for _ in 0..<count { scope.launch {} } }
  }
  try counts.count("suspend_resume", 100) { count in
    for _ in 0..<count { expect(try co_suspend { $0.resume(1) }, equals: 1, "result") }
  }
  try counts.count("promise_settle", 100) { count in
    for _ in 0..<count {
      let promise = Promise<Int>()
      blackHole(promise)
      expect(promise.fulfill(1), "a new promise settles")
    }
  }
}

/// A promise is one object, and so is a link: its closure captures what it captures, and nothing else is made.
func countPromises(into counts: inout Counts) throws {
  try counts.count("promise_then", 100) { count in
    let head = Promise<Int>()
    var tail = head
    for _ in 1..<count { tail = tail.then { $0 + 1 } }
    head.fulfill(0)
    expect(try co_await(tail), equals: count - 1, "links run")
  }
  try counts.count("promise_recover", 100) { count in
    let head = Promise<Int>()
    var tail = head
    for _ in 1..<count { tail = tail.recover { _ -> Int in 1 } }
    head.fulfill(2)
    expect(try co_await(tail), equals: 2, "the value that passes by")
  }
  try counts.count("promise_follow", 100) { count in
    let head = Promise<Int>()
    var tail = head
    for _ in 1..<count {
      let next = Promise<Int>()
      next.follow(tail)
      tail = next
    }
    head.fulfill(2)
    expect(try co_await(tail), equals: 2, "the value that is followed")
  }
}

private enum Bound {
  @TaskLocal static var tag = 0
  static let local = CoroutineLocal(default: 0)
}

/// Runs `body` with `count` bindings, of a task-local and of a CoroutineLocal in turn.
private func bound(_ count: Int, _ body: () throws -> Void) throws {
  guard count > 0 else { return try body() }
  if count.isMultiple(of: 2) {
    try Bound.local.withValue(count) { try bound(count - 1, body) }
  } else {
    try Bound.$tag.withValue(count) { try bound(count - 1, body) }
  }
}
