import CCoroutine
import Glibc

/// Carries a closure to another thread and its result back.
private final class Errand<Result> {
  let body: () throws -> Result
  var result: Swift.Result<Result, any Error>?
  init(_ body: @escaping () throws -> Result) { self.body = body }
  func run() { result = Swift.Result { try body() } }
}

/// Runs `body` on a new thread and waits for it.
///
/// Contexts are tested on plain threads because a test itself runs inside a Task, where Swift keeps task-locals in the
/// Task and not with the thread.
func onThread<Result>(_ body: @escaping () throws -> Result) throws -> Result {
  let errand = Errand(body)
  let thread = start { errand.run() }
  pthread_join(thread, nil)
  return try errand.result!.get()
}

/// Starts a thread that runs `body`, which must not throw; to be joined.
func startThread(_ body: @escaping () throws -> Void) -> pthread_t {
  start {
    do { try body() } catch { fatalError("\(error)") }
  }
}

private func start(_ body: @escaping () -> Void) -> pthread_t {
  var thread = pthread_t()
  let argument = Unmanaged.passRetained(Errand<Void>(body)).toOpaque()
  let status = pthread_create(
    &thread,
    nil,
    { argument in
      cco_guard_thread()
      Unmanaged<Errand<Void>>.fromOpaque(argument!).takeRetainedValue().run()
      return nil
    },
    argument
  )
  precondition(status == 0, "pthread_create answered \(status)")
  return thread
}

/// Several threads that take turns.
///
/// Each call of `next` runs a closure on the next thread, in turn, and waits for it. At any time one thread runs and
/// all others wait, so their data needs no other lock.
final class Carousel {
  private var mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
  private var changed = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)
  private var threads: [pthread_t] = []
  private let count: Int
  private var turn = -1
  private var last = -1
  private var work: (() -> Void)?

  init(threads count: Int) {
    self.count = count
    pthread_mutex_init(mutex, nil)
    pthread_cond_init(changed, nil)
    for index in 0..<count { threads.append(start { self.serve(index) }) }
  }

  func next<Result>(_ body: @escaping () throws -> Result) throws -> Result {
    let errand = Errand(body)
    last = (last + 1) % count
    post { errand.run() }
    return try errand.result!.get()
  }

  /// Ends the threads.
  ///
  /// Must be called, because a thread keeps the carousel alive.
  func stop() {
    for index in 0..<count {
      last = index
      post(nil)
      pthread_join(threads[index], nil)
    }
    pthread_mutex_destroy(mutex)
    pthread_cond_destroy(changed)
    mutex.deallocate()
    changed.deallocate()
  }

  private func post(_ body: (() -> Void)?) {
    pthread_mutex_lock(mutex)
    work = body
    turn = last
    pthread_cond_broadcast(changed)
    while turn != -1 { pthread_cond_wait(changed, mutex) }
    pthread_mutex_unlock(mutex)
  }

  private func serve(_ index: Int) {
    while true {
      pthread_mutex_lock(mutex)
      while turn != index { pthread_cond_wait(changed, mutex) }
      let body = work
      pthread_mutex_unlock(mutex)
      body?()
      pthread_mutex_lock(mutex)
      work = nil
      turn = -1
      pthread_cond_broadcast(changed)
      pthread_mutex_unlock(mutex)
      if body == nil { return }
    }
  }
}

/// Runs `body` on several threads at the same time and returns the results in the threads' order.
func concurrently<Result>(threads count: Int, _ body: @escaping (Int) throws -> Result) throws -> [Result] {
  let errands = (0..<count).map { index in Errand { try body(index) } }
  let threads = errands.map { errand in start { errand.run() } }
  for thread in threads { pthread_join(thread, nil) }
  return try errands.map { try $0.result!.get() }
}
