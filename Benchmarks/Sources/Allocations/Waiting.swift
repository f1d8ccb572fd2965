import CProbe
import Coroutine
import Harness

// What must not allocate at all: giving way, parking and going on, waiting for what is known.

func countWaiting(into counts: inout Counts) throws {
  try counts.count("resume_suspend", 1000) { count in
    expect(cprobe_resume_suspend(UInt64(count), CPROBE_CLEAN), equals: UInt64(count), "resumes")
  }
  try counts.count("create_run_finish", 1000) { count in
    expect(cprobe_create_run_finish(UInt64(count)), equals: UInt64(count), "bodies")
  }
  try counts.count("yield", 1000, .busy) { for _ in 0..<$0 { try co_yield() } }
  try counts.count("delay", 50, .busy) { for _ in 0..<$0 { try co_delay(.microseconds(100)) } }

  let job = co_launch { 1 }
  try job.blockingWait()
  try counts.count("join_finished", 1000) { for _ in 0..<$0 { expect(try job.join(), equals: 1, "result") } }
  try counts.count("await_settled_job", 1000) { for _ in 0..<$0 { expect(try co_await(job), equals: 1, "result") } }
  let promise = Promise.value(1)
  try counts.count("await_settled", 1000) { for _ in 0..<$0 { expect(try co_await(promise), equals: 1, "result") } }
  try counts.count("check_cancelled", 1000) { for _ in 0..<$0 { try co_checkCancelled() } }
  try counts.count("timeout", 1000) { count in
    for _ in 0..<count { expect(try co_timeout(.seconds(60)) { 1 }, equals: 1, "result") }
  }
  try countParking(into: &counts)
}

/// A hundred coroutines, already started, park on a promise and are woken by it: from the first park to the last one's
/// going on, nothing is allocated but what the promise itself needs.
private func countParking(into counts: inout Counts) throws {
  try counts.countWithin("park_and_wake", 100) { count in
    let gate = Promise<Int>()
    let (started, resumed) = (Tally(), Tally())
    for _ in 0..<count {
      co_launch {
        started.add(1)
        try co_yield()
        resumed.add(try co_await(gate))
      }
    }
    while started.value < count { try co_yield() }
    return {
      try co_yield()
      try co_yield()
      gate.fulfill(1)
      while resumed.value < count { try co_yield() }
    }
  }
}
