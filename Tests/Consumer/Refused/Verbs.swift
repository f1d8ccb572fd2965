// What waits in a coroutine is refused in an async function, where it would throw or block. scripts/consumer compiles
// this file and compares: the compiler refuses every line that ends in `// refused`, and no other.
import Coroutine
import Dispatch

func verbs(_ job: Job<Int>, _ promise: Promise<Int>, _ queue: DispatchQueue, _ host: HostedScheduler) async throws {
  try co_delay(.zero)  // refused
  try co_yield()  // refused
  try co_switch(to: queue)  // refused
  try co_switch(to: host)  // refused
  _ = try co_suspend { (done: Resumer<Int>) in done.resume(1) }  // refused
  _ = try co_await(job)  // refused
  _ = try co_await { try await job.value }  // refused
  _ = try co_awaitToEnd { try await job.value }  // refused
  _ = try co_select { promise.onAwait { _ in } }  // refused
  _ = try co_blocking { 1 }  // refused
  _ = try co_blocking(onUndelivered: { (_: Int) in }, { 1 })  // refused
  try co_untilReadable(0)  // refused
  try co_untilWritable(0)  // refused
  try co_checkCancelled()  // refused
  _ = try co_all([job])  // refused
  _ = try co_allSettled([job])  // refused
  _ = try co_any([job])  // refused
  _ = try co_race([job])  // refused
  try co_scope { _ in }  // refused
  try co_scope(failures: .isolated) { _ in }  // refused
  try co_timeout(.zero) {}  // refused
  co_shield {}  // refused
  _ = try job.join()  // refused
  _ = try job.blockingWait()  // refused
  _ = try promise.blockingWait()  // refused
  _ = try job._awaitValue()  // refused
  _ = try promise._awaitValue()  // refused
  try co_stopping._awaitValue()  // refused
}

func sources(
  _ channel: Channel<Int>,
  _ mailbox: Mailbox<Int>,
  _ actor: ActorRef<Reply<Int>>,
  _ progress: ProgressPromise<Int>
) async throws {
  for _ in progress {}  // refused
  try channel.send(1)  // refused
  _ = try channel.receive()  // refused
  _ = try channel.receive(count: 1)  // refused
  _ = try channel.receiveAll()  // refused
  try channel.forEach { _ in }  // refused
  _ = try mailbox.receive()  // refused
  try mailbox.forEach { _ in }  // refused
  try mailbox.run(Behavior { _ in .stop })  // refused
  _ = try actor.ask { $0 }  // refused
}

func locks(
  _ mutex: FairMutex,
  _ semaphore: FairSemaphore,
  _ lock: FairReadWriteLock,
  _ latch: Latch,
  _ group: WaitGroup,
  _ condition: Condition,
  _ limiter: RateLimiter,
  _ once: Once<Int>,
  _ flight: SingleFlight<Int, Int>
) async throws {
  try mutex.lock()  // refused
  try mutex.withLock {}  // refused
  try semaphore.acquire()  // refused
  try lock.lockRead()  // refused
  try lock.lockWrite()  // refused
  try lock.withReadLock {}  // refused
  try lock.withWriteLock {}  // refused
  try latch.wait()  // refused
  try group.wait()  // refused
  try condition.wait { true }  // refused
  try limiter.acquire()  // refused
  _ = try once.run { 1 }  // refused
  _ = try flight.run(1) { 1 }  // refused
}

actor Account {}

func isolated(_ account: Account) async throws {
  try co_isolated(account) { _ in }  // refused
}

/// What does not wait may be called anywhere, and in a coroutine everything may.
func accepted(
  _ mutex: FairMutex,
  _ channel: Channel<Int>,
  _ actor: ActorRef<Int>,
  _ generator: Generator<Int, Void, Void>
) async throws {
  _ = mutex.tryLock()
  mutex.unlock()
  _ = channel.trySend(1)
  _ = channel.tryReceive()
  try actor.tell(1)
  _ = try generator.step()
  for try await _ in channel {}
  try await co_launch {
    try co_yield()
    try mutex.withLock {}
  }.value
}
