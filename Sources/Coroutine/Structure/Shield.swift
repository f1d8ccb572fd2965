/// Hides cancellation from outside while `body` runs, so that cleanup code can wait.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideSnippets.swift -->
/// ```swift
/// func store(_ line: String) throws {
///   defer { try? co_shield { try journal.send("stored \(line)") } }
///   try co_delay(.seconds(1))
/// }
/// ```
///
/// Hidden are the cancellation of the job, and enclosing deadlines and scopes. The next suspension after the end sees
/// them again. Deadlines and scopes inside `body` work as usual. Calls `body` directly; outside a coroutine it does
/// nothing else.
@discardableResult
@available(*, noasync, message: "start a Task, or await the `value` of a coroutine that does this")
public func co_shield<Output, Failure>(_ body: () throws(Failure) -> Output) throws(Failure) -> Output {
  guard let job = Carrier.current?.pointee.job else { return try body() }
  return try job.withShield(body)
}
