// Loads a PostgreSQL server that pgbench has filled, for Benchmarks/run-postgres.
//
//   postgres-load MODE ADDRESS [CLIENTS] [SECONDS]      for so many seconds
//   postgres-load MODE ADDRESS [CLIENTS] =TRANSACTIONS  so many transactions by each client: for counts of system calls
//
// Prints lines "figure <TAB> number". The modes are in the switch below.
import Coroutine
import CoroutinePostgres
import Harness

co_main {
  let arguments = CommandLine.arguments
  guard arguments.count >= 3 else { fail("postgres-load MODE ADDRESS [CLIENTS] [SECONDS]") }
  let address = arguments[2]
  let clients = arguments.count > 3 ? Int(arguments[3]) ?? 8 : 8
  let limit = Limit(arguments.count > 4 ? arguments[4] : "3")
  let scale = arguments.count > 5 ? Int(arguments[5]) ?? 1 : 1
  switch arguments[1] {
  // A connection for each client, as pgbench has it.
  case "select": try Statements(address, clients: clients, connections: clients).select(limit)
  case "tpcb": try Statements(address, clients: clients, connections: clients).transfer(limit)
  // Many coroutines on eight connections, one statement at a time each; and on eight pipelines.
  case "pool": try Statements(address, clients: clients, connections: 8).selectByPool(limit)
  case "pipeline": try Statements(address, clients: clients, connections: 8).selectByPipeline(limit)
  // Without libpq; ADDRESS is the folder of the socket, and the fifth argument pgbench's scale.
  case "raw": try RawWire(folder: address, clients: clients, scale: scale, batch: 1).select(limit)
  case "raw-batch": try RawWire(folder: address, clients: clients, scale: scale, batch: 8).select(limit)
  case "waiters": try measureWaiters(address, count: clients)
  case "enqueue": try WorkLoad(address, wakesUp: true).enqueue(clients: clients, limit)
  case "enqueue-quiet": try WorkLoad(address, wakesUp: false).enqueue(clients: clients, limit)
  case "work": try WorkLoad(address, wakesUp: true).work(jobs: clients)
  case "machine": for line in [Machine.description] + Machine.warnings { print(line) }
  case "success": try waitForSuccess(address)
  default: fail("there is no mode \(arguments[1])")
  }
}
