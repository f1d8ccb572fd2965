module net-peer

go 1.19
