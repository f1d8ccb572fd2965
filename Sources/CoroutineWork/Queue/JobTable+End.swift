#if Postgres
import CoroutinePostgres

// How an attempt ends. Each statement checks the fence and the state; the result says whether the job was still held.

extension JobTable {
  /// Locks the row of a job that is to be finished; false if it is not this worker's.
  ///
  /// Asks the server.
  func lock(_ id: Int64, fence: Int64, _ t: PostgresTransaction) throws -> Bool {
    try t.first(
      "select true from \(job) where \(isHeld(id, fence)) for key share",
      as: Bool.self
    ) == true
  }

  /// Completes the job.
  ///
  /// Asks the server.
  func complete(_ id: Int64, fence: Int64, isDeleted: Bool, _ session: some PostgresSession) throws -> Bool {
    if isDeleted { return try session.run("delete from \(job) where \(isHeld(id, fence))").affected == 1 }
    return try session.run(
      "update \(job) set state = 'completed', ended_at = now(), lease_ends = null where \(isHeld(id, fence))"
    ).affected == 1
  }

  /// Ends a failed attempt; returns the state that follows, or nil.
  ///
  /// Asks the server.
  func fail(_ id: Int64, fence: Int64, delay: Duration, error: String, _ session: some PostgresSession) throws
    -> String?
  {
    let wait = delay.milliseconds
    return try session.first(
      """
      update \(job) set
        state = case when cancel_asked then 'cancelled' when attempt >= attempts then 'discarded'
          when \(wait) > 0 then 'retryable' else 'available' end,
        at = case when cancel_asked or attempt >= attempts then at else now() + \(wait) * interval '1 ms' end,
        ended_at = case when cancel_asked or attempt >= attempts then now() end,
        lease_ends = null, errors = \(adding(error))
      where \(isHeld(id, fence)) returning state
      """,
      as: String.self
    )
  }

  /// Gives the job up.
  ///
  /// Asks the server.
  func discard(_ id: Int64, fence: Int64, error: String, _ session: some PostgresSession) throws -> Bool {
    try session.run(
      """
      update \(job) set state = 'discarded', ended_at = now(), lease_ends = null, errors = \(adding(error))
      where \(isHeld(id, fence))
      """
    ).affected == 1
  }

  /// Ends an attempt that does not count, and makes the job available later.
  ///
  /// Asks the server.
  func snooze(_ id: Int64, fence: Int64, delay: Duration, _ session: some PostgresSession) throws -> Bool {
    let wait = delay.milliseconds
    return try session.run(
      """
      update \(job) set attempt = attempt - 1, lease_ends = null,
        state = case when cancel_asked then 'cancelled' when \(wait) > 0 then 'scheduled' else 'available' end,
        ended_at = case when cancel_asked then now() end,
        at = case when cancel_asked then at else now() + \(wait) * interval '1 ms' end
      where \(isHeld(id, fence))
      """
    ).affected == 1
  }

  /// Gives a job back that was not handled to its end.
  ///
  /// Asks the server.
  func release(_ id: Int64, fence: Int64, _ session: some PostgresSession) throws -> Bool {
    try session.run("update \(job) set \(Self.released) where \(isHeld(id, fence))").affected == 1
  }

  /// Gives back what a claim may have taken whose answer was lost: running jobs of `worker` but those of `held`.
  func releaseUnknown(worker: String, but held: [Int64], _ session: some PostgresSession) throws {
    try session.run(
      """
      update \(job) set \(Self.released)
      where queue = \(queue) and state = 'running' and worker = \(worker) and not id = any(\(held))
      """
    )
  }

  /// Stores what the next attempt finds.
  ///
  /// Asks the server.
  func save(_ id: Int64, fence: Int64, checkpoint: [UInt8], _ session: some PostgresSession) throws -> Bool {
    try session.run("update \(job) set checkpoint = \(Bytes(checkpoint)) where \(isHeld(id, fence))").affected == 1
  }

  /// What has become of a finish whose COMMIT was lost.
  enum Outcome { case committed, notCommitted, lost, gone }

  /// Waits until nobody has the row locked, so until the lost transaction has ended.
  ///
  /// Asks the server.
  func outcome(_ id: Int64, fence: Int64, _ t: PostgresTransaction) throws -> Outcome {
    let row = try t.first("select state, fence from \(job) where id = \(id) for update", as: (String, Int64?).self)
    guard let (state, found) = row else { return .gone }
    guard found == fence else { return .lost }
    return state == "completed" ? .committed : state == "running" ? .notCommitted : .lost
  }

  private static let released: SQL = """
    attempt = attempt - 1, lease_ends = null, state = case when cancel_asked then 'cancelled' else 'available' end,
    ended_at = case when cancel_asked then now() end
    """

  private func isHeld(_ id: Int64, _ fence: Int64) -> SQL {
    "id = \(id) and fence = \(fence) and state = 'running'"
  }
}

/// Bytes as one value: an array of bytes is a list of values in an interpolation.
private struct Bytes: PostgresEncodable {
  let bytes: [UInt8]
  init(_ bytes: [UInt8]) { self.bytes = bytes }
  static var postgresType: UInt32 { 17 }
  func encode(into target: inout [UInt8]) { target += bytes }
}

/// An error as a text that the server takes: without zero bytes, and of 4,000 characters at most.
func errorText(_ error: any Error) -> String { storable("\(error)") }

func storable(_ text: String) -> String {
  String(text.unicodeScalars.lazy.filter { $0 != "\0" }.prefix(4_000).map(Character.init))
}
#endif
