import CoroutineWork
import Foundation

/// How the outbox is, for `GET /health` and `GET /health.json`.
struct Health: Codable, Sendable {
  /// A mail that is given up.
  struct GivenUp: Codable, Sendable {
    var job: Int64
    var order: String?
    var error: String
  }

  /// How many mails are in each state.
  var counts: [String: Int]
  /// How long the mail has waited that is next, in seconds.
  var oldest: Double
  /// Mails whose worker has ended, and which are taken over soon.
  var expired: Int
  /// Versions of rows that nothing needs, and the oldest transaction of the server, in seconds, which keeps them.
  var deadRows: Int
  var oldestTransaction: Double
  /// The oldest ones, at most 20.
  var givenUp: [GivenUp]

  /// Whether mails are sent in time.
  var isGood: Bool { oldest < 60 }

  /// Asks the server.
  init(_ shop: Shop) throws {
    let counted = try shop.mails.counts()
    counts = Dictionary(uniqueKeysWithValues: WorkState.allCases.map { ($0.rawValue, counted[$0] ?? 0) })
    let health = try shop.mails.health()
    (oldest, expired) = (health.oldestAvailable / .seconds(1), health.expiredLeases)
    (deadRows, oldestTransaction) = (health.deadRows, health.oldestTransaction / .seconds(1))
    givenUp = try shop.mails.jobs(.discarded, limit: 20).map { record in
      GivenUp(job: record.id, order: try? record.payload.get().order, error: record.errors.last ?? "")
    }
  }
}
