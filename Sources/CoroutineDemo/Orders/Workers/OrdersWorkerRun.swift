#if Demo
import Coroutine
import CoroutinePostgres
import Foundation

/// One worker as a process.
///
/// It is killed at any moment, so it has nothing to do at its end: it ends as soon as its standard input does.
struct OrdersWorkerRun: Sendable {
  private let address: String
  private let schema: String
  private let number: Int

  init(_ command: OrdersWorkerCommand) {
    (address, schema, number) = (command.database, command.schema, command.number)
  }

  func run() -> Never {
    co_main(within: .zero) {
      var options = PostgresPool.Options()
      options.connections = 0...6
      let shop = Shop(on: try PostgresPool(address, options: options), schema: schema)
      try co_scope { scope in
        scope.launch(name: "input") {
          try co_untilReadable(STDIN_FILENO)
          exit(0)
        }
        try shop.work(as: "worker \(number), process \(getpid())")
      }
    }
  }
}
#endif
