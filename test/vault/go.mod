module azure-kms-plugin/test/vault

go 1.26.0
