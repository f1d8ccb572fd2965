import CDispatch
import Coroutine
import Dispatch
import Harness

// From one serial queue to another and back: the coroutine's way beside the least that Dispatch needs, in the same run
// and round for round. What counts is the ratio.

func addHops(to suite: inout Suite) {
  suite.figures(
    [
      Figure("queue_hop"), Figure("gcd_hop", owner: "gcd"), Figure("queue_hop_ratio", unit: "ratio"),
    ],
    200_000
  ) { count in
    let bare = nanosecondsPerHop(count, bareHops)
    let ours = nanosecondsPerHop(count, coroutineHops)
    return [ours, bare, ours / bare]
  }
}

func nanosecondsPerHop(_ count: Int, _ hop: (Int) -> Int) -> Double {
  let start = Clock.wall.now
  expect(hop(count), equals: count, "hops made")
  return Double(Clock.wall.now - start) / Double(count)
}

private func coroutineHops(_ count: Int) -> Int {
  let (first, second) = (DispatchQueue(label: "hop.first"), DispatchQueue(label: "hop.second"))
  let job = co_launch(on: first) {
    var hops = 0
    for index in 0..<count {
      try co_switch(to: index & 1 == 0 ? second : first)
      hops += 1
    }
    return hops
  }
  return (try? job.blockingWait()) ?? 0
}

/// Two queues that pass one record to each other in turn.
func bareHops(_ count: Int) -> Int {
  let done = DispatchSemaphore(value: 0)
  let (first, second) = (dispatch_queue_create("bare.first", nil), dispatch_queue_create("bare.second", nil))
  let ball = UnsafeMutablePointer<Ball>.allocate(capacity: 1)
  ball.initialize(to: Ball(here: first, there: second, hops: 0, left: count, done: done))
  dispatch_async_f(first, ball) { hop($0!) }
  done.wait()
  let hops = ball.pointee.hops
  ball.deinitialize(count: 1)
  ball.deallocate()
  return hops
}

private struct Ball {
  var here: dispatch_queue_t
  var there: dispatch_queue_t
  var hops: Int
  var left: Int
  let done: DispatchSemaphore
}

private func hop(_ context: UnsafeMutableRawPointer) {
  let ball = context.assumingMemoryBound(to: Ball.self)
  ball.pointee.hops += 1
  ball.pointee.left -= 1
  if ball.pointee.left == 0 {
    ball.pointee.done.signal()
    return
  }
  swap(&ball.pointee.here, &ball.pointee.there)
  dispatch_async_f(ball.pointee.here, context) { hop($0!) }
}
