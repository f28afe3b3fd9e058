module github.com/DefinedNet/dnsconfig

go 1.26
