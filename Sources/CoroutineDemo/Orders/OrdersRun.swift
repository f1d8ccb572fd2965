#if Demo
import Coroutine
import CoroutinePostgres
import Foundation

/// One run of `orders` as a process.
///
/// All of it is one main coroutine: `co_main` ends the process, and cancels the coroutine on Ctrl-C. What it leaves
/// behind on the way out, workers, tables and the server, is removed under a shield.
struct OrdersRun: Sendable {
  /// How long the workers may take after the last order.
  private static let patience = Duration.seconds(60)
  private let plan: OrdersPlan
  private let database: String?
  private let output = Output.standardOutput()
  private let errors = Output.standardError()

  init(_ command: OrdersCommand) {
    plan = command.plan
    database = command.database
  }

  func run() -> Never {
    co_main(within: .zero) {
      guard let status = try main() else { return }
      exit(status.code)
    }
  }

  /// nil: all went well.
  private func main() throws -> ExitStatus? {
    do {
      let start = ContinuousClock.now
      let proof = try database.map { try take(at: $0) } ?? takeOnOwnServer()
      let text = proof.text(plan, ContinuousClock.now - start)
      try co_blocking { [output] in try output.write(text) }
      return proof.holds ? nil : .notOnce
    } catch let error as CancellationError {
      errors.note("CoroutineDemo: interrupted before the end; nothing was proven.\n")
      throw error
    } catch is TimeoutError {
      return fail("mails or bookings were not done within \(Self.patience.readable) after the last order", .timedOut)
    } catch let failure as Cluster.Failure {
      return fail("\(failure)", .noServer)
    } catch let error as PostgresError {
      return fail("the database: \(error)", database == nil ? .software : .unreachable)
    } catch let error as OutputError {
      return fail("\(error)", .notWritten)
    } catch {
      return fail("ended by something unforeseen: \(error)", .software)
    }
  }

  /// Starts a server beside the run, which ends after it.
  private func takeOnOwnServer() throws -> OrdersProof {
    errors.note("Starting PostgreSQL in a folder of its own.\n")
    // Not cut off: what it has begun has to be removed again.
    let cluster = try co_shield {
      // Committed orders outlive the server too: fsync is on, as it is by default.
      try co_blocking { try Cluster(lines: ["listen_addresses=''", "log_min_messages=fatal"], port: 5432) }
    }
    defer { co_shield { _ = try? co_blocking { cluster.remove() } } }
    return try take(at: cluster.address)
  }

  private func take(at address: String) throws -> OrdersProof {
    var options = PostgresPool.Options()
    options.acquireTimeout = .seconds(10)
    let db = try PostgresPool(address, options: options)
    defer { co_shield { try? db.close(drain: .seconds(1)) } }
    let shop = Shop(on: db, schema: "demo_orders_\(getpid())_\(Int.random(in: 0..<1_000_000))")
    try shop.makeTables(stock: plan.orders)
    defer { co_shield { _ = try? co_timeout(.seconds(10)) { try shop.dropTables() } } }
    let crew = Crew(size: plan.workers, address: address, schema: shop.schema)
    defer { co_shield { crew.stop() } }
    return try co_scope { scope in
      let display = scope.launch(name: "display") { try OrdersDisplay(errors, plan, shop, crew).run() }
      let watch = scope.launch(name: "workers") { try crew.watch() }
      defer {
        watch.cancel()
        display.cancel()
      }
      try crew.start()
      try placeAll(in: shop, crew)
      try co_timeout(Self.patience) { while try !shop.isDone() { try co_delay(.milliseconds(50)) } }
      return try shop.prove(plan)
    }
  }

  /// Places the orders, and has workers killed meanwhile.
  private func placeAll(in shop: Shop, _ crew: Crew) throws {
    let killsAfter = plan.killsAfterOrders()
    let kills = Channel<Int>(.unbounded)
    let next = Locked(0)
    try co_scope { scope in
      scope.launch(name: "killer") {
        while let count = try kills.receive() { for _ in 0..<count { try crew.killOne() } }
      }
      defer { kills.close() }
      try co_scope { doors in
        for _ in 0..<OrdersPlan.doors {
          doors.launch(name: "door") {
            while true {
              let number = next.withLock { next in
                next += 1
                return next - 1
              }
              guard number < plan.orders else { return }
              try shop.place(Order(number: number))
              if let count = killsAfter[number] { try kills.send(count) }
              try co_delay(plan.pause * Double.random(in: 0.5...1.5))
            }
          }
        }
      }
    }
  }

  private func fail(_ sentence: String, _ status: ExitStatus) -> ExitStatus {
    errors.note("CoroutineDemo: \(sentence).\n")
    return status
  }
}
#endif
