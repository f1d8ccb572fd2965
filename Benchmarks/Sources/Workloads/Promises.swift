import Coroutine
import Driving
import Harness

// Promises on one serial queue: what one costs alone, what a link adds, and what a member of a combinator does.

func addPromises(to suite: inout Suite) {
  suite.row("promise_settle", 2_000_000) { count in
    let sum = try onQueue { createAndSettle(count) }
    expect(sum, equals: count * (count - 1) / 2, "sum of the values")
  }

  // A link is made, is called, runs its handler on the queue, settles and is released. Ten at a time, as in a program.
  suite.row("promise_then", 1_000_000) { count in
    let sum = try onQueue { try chains(count / 10, 10) }
    expect(sum, equals: count / 10 * 10, "links run")
  }

  suite.row("promise_then_long", 1_000_000) { count in
    let sum = try onQueue { try chains(1, count) }
    expect(sum, equals: count, "links run")
  }

  // Two coroutines, each of which settles what the other waits for and then waits itself: a promise made, awaited while
  // it is pending, settled, released, and a switch.
  suite.row("await_pending", 1_000_000) { count in
    let sum = try onQueue { try pingPong(count) }
    expect(sum, equals: count, "awaits")
  }

  suite.row("promise_all_10k", 1_000_000) { count in
    let rounds = max(1, count / 10_000)
    let sum = try onQueue { try allOf(count / rounds, rounds: rounds) }
    expect(sum, equals: count / rounds * rounds, "members")
  }
}

@inline(never)
private func createAndSettle(_ count: Int) -> Int {
  var sum = 0
  for index in 0..<count {
    let promise = Promise<Int>()
    blackHole(promise)
    if promise.fulfill(index) { sum &+= index }
  }
  return sum
}

@inline(never)
private func chains(_ count: Int, _ links: Int) throws -> Int {
  var sum = 0
  for _ in 0..<count {
    let head = Promise<Int>()
    var tail = head
    for _ in 0..<links { tail = tail.then { $0 &+ 1 } }
    head.fulfill(0)
    sum &+= try co_await(tail)
  }
  return sum
}

@inline(never)
private func pingPong(_ count: Int) throws -> Int {
  let table = Table()
  let job = co_launch { try rally(count / 2, table) }
  return try rally(count - count / 2, table) + job.join()
}

@inline(never)
private func rally(_ count: Int, _ table: Table) throws -> Int {
  var sum = 0
  for _ in 0..<count {
    let promise = Promise<Int>()
    table.exchange(promise)?.fulfill(1)
    sum &+= try co_await(promise)
  }
  table.exchange(nil)?.fulfill(1)
  return sum
}

/// What the other one waits for.
private final class Table: @unchecked Sendable {
  // Sound because both coroutines that use it run on one serial queue.
  private var promise: Promise<Int>?

  func exchange(_ next: Promise<Int>?) -> Promise<Int>? {
    defer { promise = next }
    return promise.take()
  }
}

@inline(never)
private func allOf(_ members: Int, rounds: Int) throws -> Int {
  var sum = 0
  for _ in 0..<rounds {
    let promises = (0..<members).map { _ in Promise<Int>() }
    let all = Promise.all(promises)
    for promise in promises { promise.fulfill(1) }
    sum &+= try co_await(all).reduce(0, &+)
  }
  return sum
}
